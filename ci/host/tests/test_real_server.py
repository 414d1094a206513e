# SPDX-License-Identifier: Apache-2.0
"""The real SGLang serves from device, storage and damaged storage, and only the last one shows."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstrata_host.model import TINY, build_model
from kvstrata_host.server import Generation, Server
from kvstrata_host.spec import ServerSpec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PROMPT = [(7 * i * i + 3 * i) % 250 + 3 for i in range(200)]
WHOLE_PAGES = 192


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    spec = ServerSpec(
        name="A",
        model=build_model(folder / "model", TINY),
        log=folder / "a.log",
        max_total_tokens=2048,
        context_tokens=1024,
        storage_backend="file",
        extra_config={"prefetch_threshold": 16},
        extra_env={"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(store)},
    )
    with Server(spec) as server:
        yield server


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def processes() -> list[int]:
    """The processes of this machine that run; zombies do not."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if stat.read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def ask(server: Server) -> Generation:
    return server.generate(PROMPT, max_new_tokens=8, custom_params={"any": "text"})


def same_output(first: Generation, second: Generation) -> bool:
    return first.output_ids == second.output_ids and first.output_logprobs == pytest.approx(
        second.output_logprobs, abs=1e-4
    )


def test_the_prompt_comes_from_device_storage_and_damaged_storage(
    server: Server, store: Path
) -> None:
    computed = ask(server)
    assert computed.prompt_tokens == len(PROMPT)
    assert computed.cached_tokens == 0

    repeated = ask(server)
    assert repeated.cached_device_tokens == WHOLE_PAGES
    assert same_output(repeated, computed)

    def backed_up() -> bool:
        return server.metrics().get("sglang:backuped_tokens_total", 0.0) >= WHOLE_PAGES

    until(backed_up)
    server.flush()
    restored = ask(server)
    assert (restored.cached_device_tokens, restored.cached_storage_tokens) == (0, WHOLE_PAGES)
    assert same_output(restored, computed)

    for file in store.rglob("*.bin"):
        content = bytearray(file.read_bytes())
        content[3::4] = bytes(byte ^ 0x80 for byte in content[3::4])  # the signs of its float32
        file.write_bytes(content)
    server.flush()
    damaged = ask(server)
    assert damaged.cached_storage_tokens == WHOLE_PAGES
    assert not same_output(damaged, computed)


def test_killing_leaves_no_process_of_the_group(server: Server) -> None:
    assert server.pid is not None
    group = [pid for pid in processes() if os.getpgid(pid) == server.pid]
    assert len(group) >= 3
    server.kill()
    assert not {pid for pid in processes() if pid in group}
