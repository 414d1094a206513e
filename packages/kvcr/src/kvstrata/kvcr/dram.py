# SPDX-License-Identifier: Apache-2.0
"""The DRAM tier: memory that this process owns and lends to KVCR."""

import logging
import mmap
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import psutil

from .errors import ConfigError, StartupError
from .extension import ENABLEMENT
from .rate_limit import RateLimit

logger = logging.getLogger(__name__)

_ALIGNMENT_BYTES = 4096
_STEP_BYTES = 64 << 20


class DramTier:
    """Anonymous memory, resident from the start, cut into one part per KVCR pool.

    Resident, because a page that is first touched by a deposit makes that deposit many times
    slower. The memory stays mapped as long as this object lives.

    Args:
        pool_bytes: size of each part.
        timeout_seconds: how long the memory may take to become resident.
        allocate: gives memory of a size in bytes.

    Raises ConfigError for more memory than there is, StartupError after the timeout.
    """

    def __init__(
        self,
        pool_bytes: Mapping[str, int],
        timeout_seconds: float = 300.0,
        allocate: Callable[[int], mmap.mmap] = ENABLEMENT.allocate,
    ) -> None:
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
        self._memory = allocate(total)
        array = np.frombuffer(self._memory, dtype=np.uint8)
        _make_resident(array, timeout_seconds)
        address = int(array.ctypes.data)
        self.pools: list[tuple[str, int, int]] = []
        for name, size in sizes.items():
            self.pools.append((name, address, pool_bytes[name]))
            address += size


def _make_resident(memory: npt.NDArray[np.uint8], timeout_seconds: float) -> None:
    started, said = time.monotonic(), RateLimit(10.0)
    said.admits()
    for begin in range(0, memory.size, _STEP_BYTES):
        seconds = time.monotonic() - started
        expected = seconds * memory.size / begin if begin else 0.0
        if seconds > timeout_seconds:
            raise StartupError(
                f"dram_bytes: {begin} of {memory.size} bytes are resident after {seconds:.0f} s; "
                f"all would take about {expected:.0f} s, and startup_timeout_seconds is "
                f"{timeout_seconds:g}. Lower dram_bytes, or raise startup_timeout_seconds."
            )
        if said.admits():
            logger.info(
                "kvcr dram resident_bytes=%d of=%d seconds=%.0f expected_seconds=%.0f",
                begin,
                memory.size,
                seconds,
                expected,
            )
        memory[begin : begin + _STEP_BYTES : _ALIGNMENT_BYTES] = 0


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
