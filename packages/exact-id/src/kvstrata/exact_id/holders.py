# SPDX-License-Identifier: Apache-2.0
"""How many leased rows lie on each VMM page of the pools that follow the same ids."""

from collections.abc import Iterable, Mapping
from itertools import chain

import numpy as np

from .geometry import PoolGeometry, VmmPages


class PageHolders:
    """A count for each VMM page of each pool; row 0 holds its own for good.

    A request has few pages, and between SGLang's calls a loop over as few takes a fraction of what
    array operations take, whose code has left the processor's caches by then.
    """

    def __init__(self, geometries: Mapping[str, PoolGeometry], row_count: int) -> None:
        self._places = [
            (pool, page)
            for pool, geometry in geometries.items()
            for page in range(geometry.vmm_page_count)
        ]
        self._counts = [0] * len(self._places)
        self._lies_on = _places_by_row(geometries.values(), row_count)
        self.hold([0])

    def hold(self, ids: Iterable[int]) -> Mapping[str, VmmPages]:
        """Count a holder for the VMM pages of each id; gives those that had none, ascending."""
        counts, lies_on = self._counts, self._lies_on
        first_held = []
        for each in ids:
            for place in lies_on[each]:
                if not counts[place]:
                    first_held.append(place)
                counts[place] += 1
        return self._by_pool(first_held)

    def let_go(self, ids: Iterable[int]) -> Mapping[str, VmmPages]:
        """Take back what `hold` counted; gives the VMM pages without a holder now, ascending."""
        counts, lies_on = self._counts, self._lies_on
        last_held = []
        for each in ids:
            for place in lies_on[each]:
                counts[place] -= 1
                if not counts[place]:
                    last_held.append(place)
        return self._by_pool(last_held)

    def of(self, pool: str) -> list[int]:
        """How many rows lie on each VMM page of a pool; a copy."""
        return [
            count
            for (owner, _), count in zip(self._places, self._counts, strict=True)
            if owner == pool
        ]

    def _by_pool(self, places: list[int]) -> Mapping[str, VmmPages]:
        found: dict[str, list[int]] = {}
        for place in sorted(places):
            pool, page = self._places[place]
            found.setdefault(pool, []).append(page)
        return {pool: np.array(pages, dtype=np.int64) for pool, pages in found.items()}


def _places_by_row(geometries: Iterable[PoolGeometry], row_count: int) -> list[tuple[int, ...]]:
    """The VMM pages that each row lies on, those of one pool after those of another.

    Rows that lie on the same ones share a tuple.
    """
    rows = np.arange(row_count)
    start = 0
    columns = []
    for geometry in geometries:
        first = start + rows * geometry.page_bytes // geometry.vmm_page_bytes
        columns.append(zip(first.tolist(), (first + geometry.span_of(rows)).tolist(), strict=True))
        start += geometry.vmm_page_count
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    return [
        shared.setdefault(places, places)
        for spans in zip(*columns, strict=True)
        for places in [tuple(chain.from_iterable(range(first, end) for first, end in spans))]
    ]
