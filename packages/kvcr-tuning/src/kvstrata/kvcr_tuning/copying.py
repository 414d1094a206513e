# SPDX-License-Identifier: Apache-2.0
"""Restores from own DRAM by copying: claim the pages, copy them with a few threads, release them.

KVCR's own way is a transfer of NIXL from this process to itself, which its progress thread has to
describe, post and poll. The DRAM tier is memory of this process, and a claimed page stays where it
is, so nothing of that is needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from kvcr.types import BlockKey, CacheTier
from numpy.typing import NDArray

from kvstrata.kvcr.batch import Batch, by_layout
from kvstrata.kvcr.extension import Extension
from kvstrata.kvcr.hints import Hint
from kvstrata.kvcr.runner import Blocks, Runner

from .around import Around

_SHARE_BYTES = 1 << 20
"""What it pays to give a thread at least."""


class Copy(NamedTuple):
    """One block to copy, by addresses."""

    target: int
    source: int
    size_bytes: int


class Copier:
    """Copies blocks of memory with a number of threads, the caller's among them.

    A busy scheduler gives the interpreter back 5 ms after it took it, so each run of blocks is one
    call, which lets go of it once.
    """

    def __init__(self, threads: int) -> None:
        self._helpers = threads - 1
        self._pool = ThreadPoolExecutor(self._helpers, "kvcr-copy") if self._helpers > 0 else None

    def copy(self, copies: Sequence[Copy]) -> None:
        """Returns, or raises, once nothing copies any more."""
        runs = list(_runs(copies, self._helpers + 1))
        helpers = min(self._helpers, len(runs) - 1)
        remaining = iter(runs)
        if self._pool is None or helpers < 1:
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


def _runs(copies: Sequence[Copy], threads: int) -> Iterator[Sequence[Copy]]:
    """The copies in parts that one call can make, and of about a thread's share at most."""
    share = max(_SHARE_BYTES, sum(each.size_bytes for each in copies) // threads)
    start = taken = 0
    for at, (target, source, size) in enumerate(copies):
        first = copies[start]
        follows = (
            size == first.size_bytes
            and target == first.target + size * (at - start)
            and (source - first.source) % size == 0
            and taken < share
        )
        if not follows and at > start:
            yield copies[start:at]
            start, taken = at, 0
        taken += size
    if start < len(copies):
        yield copies[start:]


def _copy_all(runs: Iterator[Sequence[Copy]]) -> None:
    # Several threads take from one iterator of a list, which the interpreter makes safe.
    for run in runs:
        _gather(run)


def _gather(run: Sequence[Copy]) -> None:
    """Blocks of one size, to places one after the other, from places whole blocks apart."""
    size = run[0].size_bytes
    sources = [each.source for each in run]
    first = min(sources)
    places = [(source - first) // size for source in sources]
    blocks = _memory(first, max(places) + 1, size)
    np.take(blocks, places, axis=0, out=_memory(run[0].target, len(run), size), mode="clip")


@dataclass(frozen=True)
class _Memory:
    """Raw memory, as NumPy asks for it."""

    __array_interface__: Mapping[str, object]


def _memory(address: int, rows: int, row_bytes: int) -> NDArray[np.uint8]:
    memory: NDArray[np.uint8] = np.asarray(
        _Memory(
            {
                "version": 3,
                "typestr": "|u1",
                "shape": (rows, row_bytes),
                "data": (address, False),
            }
        )
    )
    return memory


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
                        self._copier.copy(_copies(runner, layout, blocks, sources))
                filled.update(dict.fromkeys(sources, True))
        others = {key: tier for key, tier in found.items() if tier is not CacheTier.LOCAL_G2}
        if others:
            results = self.inner.restore(runner, batch, others, hint)
            filled.update(zip(others, results, strict=True))
        return [filled.get(key, False) for key in found]


def _copies(
    runner: Runner,
    layout: Sequence[str],
    blocks: Blocks,
    sources: Mapping[BlockKey, Sequence[int]],
) -> list[Copy]:
    """From where each claimed page is in the DRAM tier to its place on the host.

    Component by component and in the order of places, so that neighbours come one after the other.
    """
    components = {c.label: c for pages in runner.pools.physical for c in pages.components}
    copies: list[Copy] = []
    for at, label in enumerate(layout):
        component = components[label]
        first, stride, size = component.address, component.stride_bytes, component.size_bytes
        copies += sorted(
            Copy(first + blocks[key][at].element_index * stride, addresses[at], size)
            for key, addresses in sources.items()
        )
    return copies
