# SPDX-License-Identifier: Apache-2.0
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from kvstrata.kvcr.metrics import NullRecorder, PrometheusRecorder, Recorder

POOL = {"pool": "kv"}


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def test_a_backup_counts_pages_bytes_and_its_duration() -> None:
    labels = {"tp_rank": "backup"}
    recorder = PrometheusRecorder(labels)
    recorder.backed_up("kv", pages=3, page_bytes=100, seconds=0.02)
    recorder.backed_up("kv", pages=2, page_bytes=100, seconds=0.5)
    assert value("kvcr_backup_pages_total", **labels, **POOL) == 5
    assert value("kvcr_backup_bytes_total", **labels, **POOL) == 500
    assert value("kvcr_backup_seconds_count", **labels, **POOL) == 2
    assert value("kvcr_backup_seconds_sum", **labels, **POOL) == pytest.approx(0.52)
    assert value("kvcr_backup_seconds_bucket", **labels, **POOL, le="0.025") == 1


def test_restores_are_told_apart_by_source_and_pool() -> None:
    labels = {"tp_rank": "restore"}
    recorder = PrometheusRecorder(labels)
    recorder.restored("kv", "local", pages=4, page_bytes=10, seconds=0.1)
    recorder.restored("kv", "peer", pages=1, page_bytes=10, seconds=0.1)
    recorder.restored("indexer", "peer", pages=7, page_bytes=2, seconds=0.1)
    counted = {
        (pool, source): value("kvcr_restore_bytes_total", **labels, pool=pool, source=source)
        for pool in ("kv", "indexer")
        for source in ("local", "peer")
    }
    assert counted == {
        ("kv", "local"): 40,
        ("kv", "peer"): 10,
        ("indexer", "local"): None,
        ("indexer", "peer"): 14,
    }
    assert value("kvcr_restore_pages_total", **labels, **POOL, source="local") == 4
    assert value("kvcr_restore_seconds_count", **labels, **POOL, source="peer") == 1


def test_misses_and_discards_show_as_zero_before_the_first() -> None:
    labels = {"tp_rank": "miss"}
    recorder = PrometheusRecorder(labels)
    assert value("kvcr_missed_pages_total", **labels, reason="absent") == 0
    assert value("kvcr_discarded_pages_total", **labels) == 0
    recorder.missed("absent", pages=9)
    recorder.discarded(pages=2)
    assert value("kvcr_missed_pages_total", **labels, reason="absent") == 9
    assert value("kvcr_missed_pages_total", **labels, reason="failed") == 0
    assert value("kvcr_discarded_pages_total", **labels) == 2


def test_occupancy_and_peers_are_the_latest_values() -> None:
    labels = {"tp_rank": "gauge"}
    recorder = PrometheusRecorder(labels)
    for used, opened in ((10, 2), (7, 1)):
        recorder.occupancy("kv", used_bytes=used, total_bytes=100)
        recorder.peers({"open": opened, "closed": 3})
    assert value("kvcr_dram_used_bytes", **labels, **POOL) == 7
    assert value("kvcr_dram_total_bytes", **labels, **POOL) == 100
    assert value("kvcr_peers", **labels, state="open") == 1
    assert value("kvcr_peers", **labels, state="closed") == 3


def test_a_backend_that_is_attached_again_goes_on_counting() -> None:
    labels = {"tp_rank": "again"}
    for _ in range(2):
        PrometheusRecorder(labels).discarded(pages=1)
    assert value("kvcr_discarded_pages_total", **labels) == 2


@pytest.mark.parametrize("recorder", [NullRecorder, PrometheusRecorder])
def test_every_recorder_takes_the_same_calls(recorder: type[Recorder]) -> None:
    calls = [name for name in vars(Recorder) if not name.startswith("_")]
    assert len(calls) == 6
    for name in calls:
        expected = inspect.signature(getattr(Recorder, name))
        assert inspect.signature(getattr(recorder, name)) == expected, name


RECORD = """
import sys
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.runtime_context import get_context
from kvstrata.kvcr.metrics import recorder_for

on = sys.argv[1] == "on"
get_context().override_server_args(extra_metric_labels={"cell": "7"}).install()
before = "prometheus_client" in sys.modules
recorder = recorder_for(HiCacheStorageConfig(
    tp_rank=1, tp_size=2, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
    is_mla_model=False, enable_storage_metrics=on, is_page_first_layout=True, model_name=None))
recorder.restored("kv", "peer", pages=5, page_bytes=8, seconds=0.1)
print(type(recorder).__name__, before, "prometheus_client" in sys.modules)
"""


def record(switch: str, folder: Path) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RECORD, switch],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


@pytest.mark.integration
def test_with_metrics_off_prometheus_is_not_even_imported(tmp_path: Path) -> None:
    assert record("off", tmp_path) == ["NullRecorder", "False", "False"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_with_metrics_on_another_process_reads_them_as_sglang_does(tmp_path: Path) -> None:
    for _ in range(2):
        assert record("on", tmp_path)[0] == "PrometheusRecorder"
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]
    labels = {
        "storage_backend": "kvcr",
        "tp_rank": "1",
        "dp_rank": "0",
        "pp_rank": "0",
        "pp_size": "1",
        "attn_cp_rank": "0",
        "attn_cp_size": "1",
        "cell": "7",
        "pool": "kv",
        "source": "peer",
    }
    assert registry.get_sample_value("kvcr_restore_pages_total", labels) == 10
    assert registry.get_sample_value("kvcr_restore_bytes_total", labels) == 80
    assert registry.get_sample_value("kvcr_restore_bytes_total", {**labels, "cell": "8"}) is None
