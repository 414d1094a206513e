# SPDX-License-Identifier: Apache-2.0
"""What an operator sees of a real server: its metrics and what it says at start."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvstrata_host.model import TINY, build_model
from kvstrata_host.ports import free_ports
from kvstrata_host.server import Server
from kvstrata_host.spec import ServerSpec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PROMPT = [(7 * i * i + 3 * i) % 250 + 3 for i in range(200)]
PAGES = 12
PAGE_TOKENS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    spec = ServerSpec(
        name="A",
        model=build_model(folder / "model", TINY),
        log=folder / "a.log",
        page_size_tokens=PAGE_TOKENS,
        max_total_tokens=2048,
        context_tokens=1024,
        storage_backend="kvcr",
        prefetch_policy="timeout",
        extra_config={
            "dram_bytes": "64MiB",
            "control_port": free_ports(1)[0],
            "nixl_port": free_ports(1)[0],
            "trust_request_hints": True,
            "prefetch_threshold": 16,
            "prefetch_timeout_base": 20,
        },
    )
    with Server(spec) as server:
        yield server


class Metrics:
    """One answer of a server's /metrics."""

    def __init__(self, server: Server) -> None:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as response:
            text = response.read().decode()
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def value(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def hint_to_nobody() -> str:
    payload = {
        "source_control_endpoint": f"tcp://127.0.0.1:{free_ports(1)[0]}",
        "block_hashes": [1],
        "mode": "copy",
    }
    action = {"action_type": "kv.fetch", "action_version": "1.0", "payload": payload}
    return json.dumps({"protocol_version": "0.1", "message_id": "m", "actions": [action]})


def test_a_backup_and_a_restore_show_in_the_metrics_of_the_server(server: Server) -> None:
    before = Metrics(server)
    assert before.value("kvcr_backup_pages_total") == 0
    assert [s for s in before.samples if s.name == "kvcr_missed_pages_total"]

    server.generate(PROMPT, max_new_tokens=2)
    until(lambda: Metrics(server).value("kvcr_backup_pages_total") >= PAGES)
    computed = Metrics(server)
    assert computed.value("kvcr_backup_pages_total", pool="kv") == PAGES
    assert computed.value("kvcr_missed_pages_total", reason="absent") == PAGES
    assert computed.value("kvcr_restore_pages_total") == 0
    used, total = (
        computed.value(f"kvcr_dram_{what}_bytes", pool="kv") for what in ("used", "total")
    )
    assert used == computed.value("kvcr_backup_bytes_total")
    assert used < total <= 64 << 20

    server.flush()
    assert server.generate(PROMPT, max_new_tokens=2).cached_storage_tokens == PAGES * PAGE_TOKENS
    restored = Metrics(server)
    assert restored.value("kvcr_restore_pages_total", pool="kv", source="local") == PAGES
    assert restored.value("kvcr_restore_pages_total", source="peer") == 0
    page_bytes = restored.value("kvcr_backup_bytes_total") / PAGES
    assert page_bytes > 0
    assert restored.value("kvcr_restore_bytes_total", source="local") == PAGES * page_bytes
    assert restored.value("kvcr_restore_seconds_count", source="local") == 1
    assert restored.value("kvcr_discarded_pages_total") == 0


def test_they_carry_the_labels_that_sglang_gives_its_own_storage_metrics(server: Server) -> None:
    labels = {
        sample.name: sample.labels
        for sample in Metrics(server).samples
        if sample.name in ("kvcr_discarded_pages_total", "sglang:prefetched_tokens_total")
    }
    assert labels["kvcr_discarded_pages_total"] == labels["sglang:prefetched_tokens_total"]


def test_a_peer_that_does_not_answer_shows_as_open(server: Server) -> None:
    assert Metrics(server).value("kvcr_peers", state="open") == 0
    other = [token + 1 for token in PROMPT]
    server.generate(other, max_new_tokens=2, custom_params={"kv_hints": hint_to_nobody()})
    until(lambda: Metrics(server).value("kvcr_peers", state="open") == 1)


def test_a_deadline_that_can_lose_a_restore_is_said_when_the_server_starts(server: Server) -> None:
    said = [line for line in Path(server.spec.log).read_text().splitlines() if "kvcr: " in line]
    assert len(said) == 1
    assert "policy timeout waits 20 s and 0.25 s per 1,024 tokens" in said[0]
