# SPDX-License-Identifier: Apache-2.0
"""Whether restored pages have the bytes that were backed up.

A checksum is made of a page on the host when it is backed up, and KVCR keeps it as one more
component of that page: so it is dropped with the page, and comes along from wherever the page
comes. A server that checks pages and one that does not name their pages differently and never meet.

It tells damage, in the tier or on the way, and a page that came in place of another; it does not
tell what was damaged on the host before, and protects from nobody who can change both.
"""

import ctypes
import dataclasses
import logging
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from kvcr.types import BlockKey, CacheTier, MemoryRef

from kvstrata.kvcr.batch import Batch
from kvstrata.kvcr.extension import Extension
from kvstrata.kvcr.hints import Hint
from kvstrata.kvcr.instance import retain
from kvstrata.kvcr.layout import Component, HostPages
from kvstrata.kvcr.pools import HostPools
from kvstrata.kvcr.runner import Runner

from .around import Around

logger = logging.getLogger(__name__)

_NONE_YET = 0

_PIECE_BYTES = 5 << 10
"""zlib lets go of the interpreter for more, and a busy scheduler gives it back 5 ms later."""


@dataclasses.dataclass(frozen=True)
class _Checked:
    """The pages of one host pool and their checksums, by page index."""

    components: tuple[Component, ...]
    checksums: npt.NDArray[np.uint32]

    def checksum(self, key: BlockKey, page: int) -> int:
        """Of the page's bytes on the host, as the page of this key."""
        value = zlib.crc32(key)
        for each in self.components:
            address = each.address + page * each.stride_bytes
            block = memoryview((ctypes.c_char * each.size_bytes).from_address(address))
            for start in range(0, each.size_bytes, _PIECE_BYTES):
                value = zlib.crc32(block[start : start + _PIECE_BYTES], value)
        return value


class CheckedBytes(Around):
    """Takes a restored page whose bytes are not those of its backup for a miss."""

    def __init__(self, inner: Extension) -> None:
        super().__init__(inner)
        self._checked: dict[str, _Checked] = {}

    def prepare(self, pools: HostPools) -> HostPools:
        self._checked = {}
        prepared = self.inner.prepare(pools).pools
        return HostPools({name: self._with_checksums(pages) for name, pages in prepared.items()})

    def _with_checksums(self, pages: HostPages) -> HostPages:
        if pages.is_logical:
            return pages
        checksums = np.full(pages.page_count, _NONE_YET, dtype=np.uint32)
        # KVCR writes here as it does into host pages, and may do so until the process ends.
        retain(checksums)
        size = checksums.itemsize
        address = int(checksums.ctypes.data)
        own = Component.named(f"{pages.name}.checksum", address, size, size, pages.page_count)
        self._checked[own.label] = _Checked(pages.components, checksums)
        return dataclasses.replace(pages, components=(*pages.components, own))

    def deposit(self, runner: Runner, batch: Batch) -> list[bool]:
        with self.stage("checksum"):
            for key, references in batch.blocks.items():
                pages, page = self._place(references)
                pages.checksums[page] = pages.checksum(key, page)
        return self.inner.deposit(runner, batch)

    def restore(
        self, runner: Runner, batch: Batch, found: Mapping[BlockKey, CacheTier], hint: Hint | None
    ) -> list[bool]:
        places = {key: self._place(references) for key, references in batch.only(found).items()}
        for pages, page in places.values():
            # What an earlier backup of this host page left would fit the bytes that it left.
            pages.checksums[page] = _NONE_YET
        filled = self.inner.restore(runner, batch, found, hint)
        with self.stage("checksum"):
            return [
                is_filled and self._is_whole(key, *places[key], tier=found[key])
                for key, is_filled in zip(found, filled, strict=True)
            ]

    def _place(self, references: list[MemoryRef]) -> tuple[_Checked, int]:
        checksum = references[-1]
        return self._checked[checksum.label], checksum.element_index

    def _is_whole(self, key: BlockKey, pages: _Checked, page: int, *, tier: CacheTier) -> bool:
        if pages.checksum(key, page) == pages.checksums[page]:
            return True
        origin = "own DRAM" if tier is CacheTier.LOCAL_G2 else "a peer"
        logger.error("kvcr page %s came damaged from %s, taken for a miss", key.hex(), origin)
        return False
