# SPDX-License-Identifier: Apache-2.0
import logging
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from kvstrata.kvcr import hooks
from kvstrata.kvcr.losses import (
    Discards,
    PoolSize,
    PrefetchDeadline,
    short_deadline,
    small_pools,
    warn,
)
from kvstrata.kvcr.metrics import NullRecorder
from kvstrata_host.rank import PAGE_TOKENS, make_pools

DEFAULT = PrefetchDeadline("timeout", base_seconds=1, seconds_per_ki_token=0.25)


def test_a_deadline_grows_with_the_prompt_as_sglang_counts_it() -> None:
    assert DEFAULT.seconds(0) == 1
    assert DEFAULT.seconds(4096) == 2
    assert PrefetchDeadline("best_effort", 1, 0.25).seconds(4096) == 0
    assert PrefetchDeadline("wait_complete", 1, 0.25).seconds(4096) == math.inf


def test_a_deadline_before_the_end_of_an_operation_is_said_with_numbers_and_the_setting() -> None:
    warning = short_deadline(DEFAULT, operation_seconds=30)
    for part in (
        "policy timeout waits 1 s and 0.25 s per 1,024 tokens",
        "operation_timeout_seconds=30",
        "--hicache-storage-prefetch-policy wait_complete",
        "prefetch_timeout_base of 30",
    ):
        assert part in warning
    assert "best_effort" in short_deadline(PrefetchDeadline("best_effort", 60, 1), 30)


@pytest.mark.parametrize(
    "deadline",
    [PrefetchDeadline("wait_complete", 1, 0.25), PrefetchDeadline("timeout", 30, 0)],
    ids=lambda deadline: deadline.policy,
)
def test_a_deadline_that_lets_every_operation_end_is_not_said(deadline: PrefetchDeadline) -> None:
    assert short_deadline(deadline, operation_seconds=30) == ""


def test_only_pools_that_can_stop_taking_backups_are_said_with_their_sizes() -> None:
    large, small = PoolSize("swa", 200, 100), PoolSize("kv", 64, 100)
    assert small_pools([large]) == ""
    warning = small_pools([large, small])
    assert "(kv 64 of 100)" in warning
    assert "--hicache-ratio" in warning


def cache(policy: str, host_memory_mode: str = "cache") -> Any:
    """What the warnings read of SGLang's cache, around its real pools."""
    device, _ = make_pools("mha", "page_first")
    # Imported late, because make_pools keeps silent what SGLang's imports warn about.
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    host = MHATokenToKVPoolHost(device, 0.5, 0, PAGE_TOKENS, "page_first", pin_memory=False)
    entry = PoolEntry(PoolName.KV, host, device, lambda layer: layer, is_primary_index_anchor=True)
    return SimpleNamespace(
        prefetch_stop_policy=policy,
        prefetch_timeout_base=1.0,
        prefetch_timeout_per_page=0.25 * PAGE_TOKENS / 1024,
        page_size=PAGE_TOKENS,
        host_memory_mode=host_memory_mode,
        cache_controller=SimpleNamespace(
            mem_pool_host=HostPoolGroup([entry]),
            storage_backend=SimpleNamespace(operation_timeout_seconds=30),
        ),
    )


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name.startswith("kvstrata.kvcr")]


@pytest.mark.integration
def test_the_real_pools_and_the_policy_are_said_once_each(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kvstrata"):
        warn(cache("timeout"), 30)
        warn(cache("wait_complete"), 30)
        warn(cache("wait_complete", "buffer_only"), 30)
    deadline, pools, pools_again = said(caplog)
    assert "waits 1 s and 0.25 s per 1,024 tokens" in deadline
    assert "(kv 36 of 64)" in pools
    assert pools_again == pools


@pytest.mark.integration
def test_another_backend_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    attachment = SimpleNamespace(_cache=cache("timeout"))
    hooks.warn_of_losses(None, attachment, storage_backend="file")
    assert said(caplog) == []
    hooks.warn_of_losses(None, attachment, storage_backend="kvcr")
    assert "prefetch policy timeout" in said(caplog)[0]


class Counting(NullRecorder):
    def __init__(self) -> None:
        self.pages = 0

    def discarded(self, *, pages: int) -> None:
        self.pages += pages


def test_only_pages_beyond_those_that_sglang_heard_of_are_discarded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Counting()
    discards = Discards(recorder)
    discards.note(restored_pages=128, used_pages=128)
    discards.note(restored_pages=0, used_pages=0)
    assert (recorder.pages, caplog.text) == (0, "")
    discards.note(restored_pages=200, used_pages=128)
    assert recorder.pages == 72
    assert "kvcr discarded pages=72" in caplog.text
    assert "wait_complete" in caplog.text


def test_discards_are_all_counted_and_said_in_one_line_per_interval(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    recorder = Counting()
    discards = Discards(recorder)
    for _ in range(50):
        discards.note(restored_pages=2, used_pages=0)
    assert recorder.pages == 100
    assert len(caplog.records) == 1
    now[0] += 11
    discards.note(restored_pages=1, used_pages=0)
    assert "pages=99," in caplog.records[-1].getMessage()
