# SPDX-License-Identifier: Apache-2.0
import ctypes
import logging
import time
from pathlib import Path

import pytest

from kvstrata.kvcr import ConfigError, StartupError
from kvstrata.kvcr.dram import DramTier


def test_pools_are_separate_and_writable_to_their_last_byte() -> None:
    tier = DramTier({"kv.0": 10_000, "kv.1": 5_000})
    spans = []
    for name, address, size in tier.pools:
        ctypes.memset(address, ord(name[-1]), size)
        spans.append((address, address + size))
    assert spans[0][1] <= spans[1][0]
    first = tier.pools[0]
    assert ctypes.string_at(first[1], first[2]) == b"0" * 10_000


def test_the_memory_is_resident_from_the_start() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before, size = resident_bytes(), 64 << 20
    tier = DramTier({"kv": size})
    assert resident_bytes() - before > 0.9 * size
    assert tier.pools[0][2] == size


def test_more_memory_than_there_is_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="dram_bytes"):
        DramTier({"kv": 1 << 60})


def test_memory_that_takes_too_long_is_refused_with_the_time_that_it_would_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    with pytest.raises(StartupError) as caught:
        DramTier({"kv": 640 << 20}, timeout_seconds=6)
    reason = str(caught.value)
    assert "startup_timeout_seconds is 6" in reason
    assert f"of {640 << 20} bytes are resident" in reason
    assert "Lower dram_bytes" in reason


def test_memory_that_takes_long_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks = iter(range(0, 10_000, 4))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    with caplog.at_level(logging.INFO, "kvstrata"):
        DramTier({"kv": 640 << 20}, timeout_seconds=3600)
    assert len(caplog.records) >= 2
    assert f"of={640 << 20}" in caplog.text
