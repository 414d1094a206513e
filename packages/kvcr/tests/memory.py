# SPDX-License-Identifier: Apache-2.0
"""Host pages on plain memory, with contents that tell every page and part apart."""

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from kvcr.types import BlockKey, MemoryRef

from kvstrata.kvcr.instance import Deadlines
from kvstrata.kvcr.layout import Component, HostPages
from kvstrata.kvcr.pools import HostPools

NAMESPACE = b"0123456789abcdef"
PARTS = 2

Bytes = npt.NDArray[np.uint8]


def deadlines() -> Deadlines:
    """Short enough for tests; the shipped defaults are 30 and 60 seconds."""
    return Deadlines(operation_seconds=2.0, abandon_seconds=4.0)


def key(page: int) -> BlockKey:
    """The key of a page by number."""
    return BlockKey(hashlib.sha256(f"page {page}".encode()).digest() + NAMESPACE)


def page_hash(page: int) -> int:
    """How a hint names a page by number."""
    return int.from_bytes(key(page)[:8], "big")


def pattern(page: int, page_bytes: int) -> Bytes:
    """Random bytes that are the same for the same page in every process."""
    return np.random.default_rng(page).integers(0, 256, page_bytes, dtype=np.uint8)


class PageMemory:
    """Pages of two equal parts, all first parts before all second ones, as SGLang keeps K and V."""

    def __init__(self, page_bytes: int, count: int) -> None:
        part = page_bytes // PARTS
        self._parts = np.zeros((PARTS, count, part), dtype=np.uint8)
        components = tuple(
            Component.named(f"kv.{i}", int(self._parts[i].ctypes.data), part, part, count)
            for i in range(PARTS)
        )
        self.pages = HostPages("kv", 1, count, components)
        self.pools = HostPools.of([self.pages])

    def fill(self, page: int, contents: Bytes) -> None:
        self._parts[:, page] = contents.reshape(PARTS, -1)

    def read(self, page: int) -> Bytes:
        contents: Bytes = self._parts[:, page].reshape(-1).copy()
        return contents

    def clear(self) -> None:
        self._parts[:] = 0

    def blocks(self, agent: str, places: Mapping[int, int]) -> dict[BlockKey, list[MemoryRef]]:
        """References to host places by the key of the page that belongs there."""
        return {key(page): self.pages.references(agent, at) for page, at in places.items()}
