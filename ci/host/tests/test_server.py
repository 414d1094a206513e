# SPDX-License-Identifier: Apache-2.0
"""The life of a server's process group and its answers, with a stand-in for the slow SGLang."""

import dataclasses
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstrata_host.server import PortInUseError, RequestError, Server, ServerError, StartError
from kvstrata_host.spec import ServerSpec

pytestmark = pytest.mark.timeout(60)

STANDIN = Path(__file__).parent / "standin.py"


@dataclasses.dataclass(frozen=True)
class StandinSpec(ServerSpec):
    behaviour: str = "fine"

    def command(self, port: int) -> tuple[str, ...]:
        return (sys.executable, "-S", str(STANDIN), str(port), self.behaviour)


def make(tmp_path: Path, behaviour: str = "fine", port: int = 0) -> Server:
    spec = StandinSpec("A", tmp_path / "model", tmp_path / "a.log", behaviour=behaviour, port=port)
    return Server(spec, start_timeout_s=20.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with make(tmp_path) as server:
        yield server


def state(pid: int) -> str:
    """The state letter of a process, Z of a zombie, or an empty text when it is gone."""
    try:
        return re.sub(r".*\)", "", Path(f"/proc/{pid}/stat").read_text()).split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def group(server: Server) -> list[int]:
    """The leader and its child."""
    assert server.pid is not None
    child = re.search(r"child (\d+)", server.spec.log.read_text())
    assert child is not None
    return [server.pid, int(child[1])]


def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def states(server: Server) -> list[str]:
    return [state(pid) for pid in group(server)]


def test_a_free_port_is_chosen_and_the_group_is_its_own(server: Server) -> None:
    assert server.port > 0
    assert {os.getpgid(pid) for pid in group(server)} == {server.pid}
    assert server.running


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_no_process_of_the_group_is_left_behind(server: Server, end: str) -> None:
    assert all(states(server))
    getattr(server, end)()
    assert set(states(server)) <= {"", "Z"}
    assert not server.running


def test_the_group_ends_with_the_block_also_when_it_raises(tmp_path: Path) -> None:
    with pytest.raises(KeyError), make(tmp_path) as server:
        raise KeyError
    assert set(states(server)) <= {"", "Z"}


def test_ending_twice_is_harmless(server: Server) -> None:
    server.stop()
    server.kill()
    server.stop()
    assert not server.running


def test_a_frozen_group_stands_still_and_goes_on(server: Server) -> None:
    server.pause()
    until(lambda: set(states(server)) == {"T"})
    with pytest.raises(RequestError, match=r"/generate failed"):
        server.generate([1], max_new_tokens=1, timeout_s=0.5)
    server.resume()
    until(lambda: "T" not in states(server))
    assert server.generate([1], max_new_tokens=1).output_ids == (5, 6)


def test_a_frozen_server_can_be_stopped(server: Server) -> None:
    server.pause()
    server.stop()
    assert set(states(server)) <= {"", "Z"}


def test_a_generation_carries_sglangs_counts(server: Server) -> None:
    generation = server.generate(
        [3, 4], max_new_tokens=2, custom_params={"kv_hints": "x"}, kv_hints={"message_id": "y"}
    )
    assert generation.output_ids == (5, 6)
    assert generation.output_logprobs == (-0.5, -1.5)
    counts = (generation.prompt_tokens, generation.cached_tokens)
    tiers = (
        generation.cached_device_tokens,
        generation.cached_host_tokens,
        generation.cached_storage_tokens,
    )
    assert (counts, tiers) == ((40, 32), (16, 0, 16))
    assert 0 < generation.time_to_first_token_s <= generation.latency_s
    asked = server.spec.log.read_text()
    assert '"custom_params": {"kv_hints": "x"}' in asked
    assert '"kv_hints": {"message_id": "y"}' in asked
    assert '"temperature": 0' in asked


def test_metrics_are_summed_over_their_labels(server: Server) -> None:
    assert server.metrics() == {"x_total": 5.5, "y": 1.0}


def test_a_flush_is_asked_for_until_it_is_done(server: Server) -> None:
    server.flush(timeout_s=5.0)
    assert server.running


def test_storage_is_attached_and_detached_with_the_key_and_its_settings(tmp_path: Path) -> None:
    spec = dataclasses.replace(make(tmp_path).spec, admin_key="secret")
    with Server(spec, start_timeout_s=20.0) as server:
        server.attach("file", {"a": {"b": 1}})
        server.detach()
        said = server.spec.log.read_text().splitlines()
    attached = next(line for line in said if line.startswith("attached Bearer secret "))
    body = json.loads(attached.removeprefix("attached Bearer secret "))
    assert body["hicache_storage_backend"] == "file"
    assert json.loads(body["hicache_storage_backend_extra_config_json"]) == {"a": {"b": 1}}
    assert "detached Bearer secret" in said


def test_a_flush_that_is_never_done_is_given_up(tmp_path: Path) -> None:
    with make(tmp_path, "busy") as server, pytest.raises(RequestError, match=r"refused .*: busy"):
        server.flush(timeout_s=0.3)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("refusing", "answered 400: no such token"),
        ("vague", "answered .*'meta_info'"),
        ("silent", "answered nothing"),
        ("slow", "/generate failed"),
    ],
)
def test_a_request_without_a_whole_answer_is_an_error(
    behaviour: str, message: str, tmp_path: Path
) -> None:
    with make(tmp_path, behaviour) as server, pytest.raises(RequestError, match=message):
        server.generate([1], max_new_tokens=1, timeout_s=0.5)


def test_a_server_that_dies_is_noticed_at_once_with_the_lines_that_say_why(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(StartError, match="ended with 3 while starting") as caught:
        make(tmp_path, "dying").start()
    assert time.monotonic() - began < 10
    assert "RuntimeError: no room for the pool" in str(caught.value)
    assert caught.value.log == tmp_path / "a.log"
    assert caught.value.tail[-1] == "bye"


def test_a_server_that_never_gets_healthy_is_given_up_and_ended(tmp_path: Path) -> None:
    server = make(tmp_path, "unhealthy")
    server.start_timeout_s = 1.0
    with pytest.raises(StartError, match=r"not healthy after 1\.0 s"):
        server.start()
    assert set(states(server)) <= {"", "Z"}


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = make(tmp_path, port=port)
        with pytest.raises(PortInUseError, match=f"port {port} cannot be used .* 0 for a free one"):
            server.start()
    assert server.pid is None
    assert not server.spec.log.exists()


def test_a_second_start_is_refused_while_the_first_runs(server: Server) -> None:
    with pytest.raises(ServerError, match="already running"):
        server.start()
    assert server.running


def test_a_server_can_start_again_after_it_was_killed(server: Server) -> None:
    server.kill()
    server.start()
    assert server.generate([1], max_new_tokens=1).output_ids == (5, 6)


def test_the_start_is_told_in_readable_steps(tmp_path: Path) -> None:
    told: list[str] = []

    def progress(name: str, message: str, *, elapsed_s: float) -> None:
        assert elapsed_s >= 0
        told.append(f"{name}: {message}")

    spec = StandinSpec("A", tmp_path / "model", tmp_path / "a.log")
    with Server(spec, progress=progress) as server:
        assert told[-1] == f"A: ready on port {server.port}"
    assert "A: loading weights" in told
