# SPDX-License-Identifier: Apache-2.0
"""The limit: the bytes of all pages in two runs, copied by one thread of the C library."""

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
from hicache import HostMemory

from .side import Address, Side


class Memcpy(Side):
    """The pages of the last `set`; it and `get` are what is left when nothing else is done."""

    def __init__(
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, object]
    ) -> None:
        super().__init__(memory, most, peer, settings)
        self._tier = np.ones(most * memory.page_bytes, dtype=np.uint8)
        self._held: Sequence[str] = ()

    def set(self, keys: Sequence[str]) -> None:
        for page, tier, count in self._runs(0, len(keys)):
            ctypes.memmove(tier, page, count)
        self._held = keys

    def get(self, keys: Sequence[str]) -> None:
        for page, tier, count in self._runs(self.most, len(keys)):
            ctypes.memmove(page, tier, count)

    def exists(self, keys: Sequence[str]) -> int:
        return len(keys) if keys == self._held else 0

    def _runs(self, first: int, pages: int) -> list[tuple[int, int, int]]:
        """Addresses of the pages and of the tier, and bytes, of each dense run."""
        parts = self.memory.page_contents(first, pages)
        tier = int(self._tier.ctypes.data)
        size = parts[0].numel()
        return [(part.data_ptr(), tier + at * size, size) for at, part in enumerate(parts)]
