# SPDX-License-Identifier: Apache-2.0
import ctypes
from pathlib import Path

import pytest

from kvstrata.kvcr import ConfigError
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
