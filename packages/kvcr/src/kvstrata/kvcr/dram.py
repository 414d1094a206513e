# SPDX-License-Identifier: Apache-2.0
"""The DRAM tier: memory that this process owns and lends to KVCR."""

import mmap
from collections.abc import Mapping

import numpy as np
import psutil

from .errors import ConfigError

_ALIGNMENT_BYTES = 4096


class DramTier:
    """Anonymous memory, resident from the start, cut into one part per KVCR pool.

    Resident, because a page that is first touched by a deposit makes that deposit many times
    slower. The memory stays mapped as long as this object lives.
    """

    def __init__(self, pool_bytes: Mapping[str, int]) -> None:
        sizes = {name: _aligned(size) for name, size in pool_bytes.items()}
        total = sum(sizes.values())
        available = psutil.virtual_memory().available
        if total > available:
            raise ConfigError(
                "dram_bytes",
                total,
                f"at most the {available} bytes of memory that are available",
                "Lower dram_bytes, or start fewer ranks on this host.",
            )
        self._memory = mmap.mmap(-1, total)
        array = np.frombuffer(self._memory, dtype=np.uint8)
        array[::_ALIGNMENT_BYTES] = 0
        address = int(array.ctypes.data)
        self.pools: list[tuple[str, int, int]] = []
        for name, size in sizes.items():
            self.pools.append((name, address, pool_bytes[name]))
            address += size


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
