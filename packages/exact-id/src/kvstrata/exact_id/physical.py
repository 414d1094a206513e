# SPDX-License-Identifier: Apache-2.0
"""How much physical memory of the device is left for KV."""

import time
from collections.abc import Callable

FreeBytes = Callable[[], int]
"""Bytes that may still be mapped on the device; 0 or less where there are none."""

_LIFETIME_S = 0.1


class Reading:
    """Asks `source` at most ten times a second, as kvcached does: on a GPU it is a driver call."""

    def __init__(self, source: FreeBytes) -> None:
        self._source = source
        self._free_bytes = 0
        self._expires_s = 0.0

    def __call__(self) -> int:
        now = time.monotonic()
        if now >= self._expires_s:
            self._free_bytes, self._expires_s = self._source(), now + _LIFETIME_S
        return self._free_bytes

    def forget(self) -> None:
        """Something was mapped or unmapped."""
        self._expires_s = 0.0


def free_bytes_of(device: str) -> FreeBytes:
    """Free memory of a GPU, less the share that KVCACHED_GPU_UTILIZATION leaves to others.

    Host memory counts as unlimited: mapping says when there is none.
    """
    import torch

    if torch.device(device).type != "cuda":
        return lambda: 1 << 62
    from kvcached.utils import GPU_UTILIZATION

    def free_bytes() -> int:
        free, total = torch.cuda.mem_get_info(device)
        return int(free - total * (1 - GPU_UTILIZATION))

    return free_bytes
