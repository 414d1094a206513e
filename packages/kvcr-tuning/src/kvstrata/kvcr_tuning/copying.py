# SPDX-License-Identifier: Apache-2.0
"""Restores from own DRAM by copying: claim the pages, copy them with a few threads, release them.

KVCR's own way is a transfer of NIXL from this process to itself, which its progress thread has to
describe, post and poll. The DRAM tier is memory of this process, and a claimed page stays where it
is, so nothing of that is needed.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

from kvcr.types import BlockKey, CacheTier

from kvstrata.kvcr.batch import Batch, by_layout
from kvstrata.kvcr.extension import Extension
from kvstrata.kvcr.hints import Hint
from kvstrata.kvcr.runner import Blocks, Runner

from .around import Around

_SMALL_BLOCK_BYTES = 64 << 10
"""Below, threads would spend more on taking turns in the interpreter than on copying."""

# Unlike ctypes.memmove itself, found with its argument types once; releases the interpreter.
_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memmove.restype = None


class Copy(NamedTuple):
    """One block to copy, by addresses."""

    target: int
    source: int
    size_bytes: int


class Copier:
    """Copies blocks of memory with a number of threads, the caller's among them."""

    def __init__(self, threads: int) -> None:
        self._helpers = threads - 1
        self._pool = ThreadPoolExecutor(self._helpers, "kvcr-copy") if self._helpers > 0 else None

    def copy(self, copies: Sequence[Copy]) -> None:
        """Returns, or raises, once nothing copies any more."""
        helpers = min(self._helpers, len(copies) - 1)
        remaining = iter(copies)
        if self._pool is None or helpers < 1 or copies[0].size_bytes < _SMALL_BLOCK_BYTES:
            _copy_all(remaining)
            return
        helping = []
        try:
            for _ in range(helpers):
                helping.append(self._pool.submit(_copy_all, remaining))
            _copy_all(remaining)
        finally:
            wait(helping)
        for each in helping:
            each.result()


def _copy_all(copies: Iterator[Copy]) -> None:
    # Several threads take from one iterator of a list, which the interpreter makes safe.
    for target, source, size in copies:
        _memmove(target, source, size)


class CopiedRestores(Around):
    """Copies what own DRAM has, and leaves what a peer has to `inner`."""

    def __init__(self, inner: Extension, threads: int) -> None:
        super().__init__(inner)
        self._copier = Copier(threads)

    def restore(
        self, runner: Runner, batch: Batch, found: Mapping[BlockKey, CacheTier], hint: Hint | None
    ) -> list[bool]:
        own = [key for key, tier in found.items() if tier is CacheTier.LOCAL_G2]
        filled: dict[BlockKey, bool] = {}
        for layout, blocks in by_layout(batch.only(own)).items():
            with runner.claimed(list(blocks), layout, None) as sources:
                if sources:
                    with self.stage("copy"):
                        self._copier.copy(_copies(runner, blocks, sources))
                filled.update(dict.fromkeys(sources, True))
        others = {key: tier for key, tier in found.items() if tier is not CacheTier.LOCAL_G2}
        if others:
            results = self.inner.restore(runner, batch, others, hint)
            filled.update(zip(others, results, strict=True))
        return [filled.get(key, False) for key in found]


def _copies(
    runner: Runner, blocks: Blocks, sources: Mapping[BlockKey, Sequence[int]]
) -> list[Copy]:
    """From where each claimed page is in the DRAM tier to its place on the host."""
    components = {c.label: c for pages in runner.pools.physical for c in pages.components}
    copies = []
    for key, addresses in sources.items():
        for reference, address in zip(blocks[key], addresses, strict=True):
            component = components[reference.label]
            place = component.address + reference.element_index * component.stride_bytes
            copies.append(Copy(place, address, component.size_bytes))
    return copies
