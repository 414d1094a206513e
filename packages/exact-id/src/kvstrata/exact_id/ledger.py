# SPDX-License-Identifier: Apache-2.0
"""Who holds which VMM page: a reference count for each, and the ids that are leased."""

import numpy as np
from numpy.typing import NDArray

from .errors import LeaseError
from .geometry import Ids, PoolGeometry, VmmPages


class LeaseLedger:
    """Leases on the ids of one pool. Every call is all or nothing.

    The cost of a call depends on the number of its ids alone, except for `clear`. Row 0 is leased
    for good.
    """

    def __init__(self, geometry: PoolGeometry) -> None:
        self._geometry = geometry
        self._leased = np.zeros(geometry.row_count, dtype=np.bool_)
        self._holders = np.zeros(geometry.vmm_page_count, dtype=np.int32)
        self._leased_count = 0
        self._hold_row_0()

    def lease(self, ids: Ids) -> VmmPages:
        """Lease `ids`; returns the VMM pages that nobody held before, ascending.

        Raises LeaseError, with nothing changed, if an id is not one of the pool's, occurs twice or
        is leased already.
        """
        ids = self._checked("lease", ids)
        taken = self._leased[ids]
        if np.count_nonzero(taken):
            raise LeaseError("lease", ids[taken].tolist(), "leased already")
        self._leased[ids] = True
        self._leased_count += ids.size
        pages, holders = self._holders_by_page(ids)
        before = self._holders[pages]
        self._holders[pages] = before + holders
        first_held: VmmPages = pages[before == 0]
        return first_held

    def release(self, ids: Ids) -> VmmPages:
        """Give `ids` back; returns the VMM pages that nobody holds any more, ascending.

        Raises LeaseError, with nothing changed, if an id is not one of the pool's, occurs twice or
        is not leased.
        """
        ids = self._checked("release", ids)
        taken = self._leased[ids]
        if np.count_nonzero(taken) != ids.size:
            raise LeaseError("release", ids[~taken].tolist(), "not leased")
        self._leased[ids] = False
        self._leased_count -= ids.size
        pages, holders = self._holders_by_page(ids)
        after = self._holders[pages] - holders
        self._holders[pages] = after
        last_held: VmmPages = pages[after == 0]
        return last_held

    def clear(self) -> VmmPages:
        """Give back all ids; returns the VMM pages that nobody holds any more, ascending."""
        before = self._holders > 0
        self._leased[:] = False
        self._leased_count = 0
        self._holders[:] = 0
        self._hold_row_0()
        return np.flatnonzero(before & (self._holders == 0))

    @property
    def leased_ids(self) -> Ids:
        """The leased ids, ascending, without row 0."""
        return np.flatnonzero(self._leased[1:]) + 1

    @property
    def leased_count(self) -> int:
        """How many ids are leased, without row 0."""
        return self._leased_count

    @property
    def held_pages(self) -> VmmPages:
        """The VMM pages that somebody holds, ascending."""
        return np.flatnonzero(self._holders)

    @property
    def holders(self) -> NDArray[np.int32]:
        """How many leased rows lie on each VMM page; a copy."""
        copy: NDArray[np.int32] = self._holders.copy()
        return copy

    def _hold_row_0(self) -> None:
        self._leased[0] = True
        pages, holders = self._holders_by_page(np.zeros(1, dtype=np.int64))
        self._holders[pages] = holders

    def _checked(self, action: str, ids: Ids) -> Ids:
        if ids.size == 0:
            return ids
        ids = ids.copy()
        ids.sort()
        last = self._geometry.page_count
        if ids[0] < 1 or ids[-1] > last:
            foreign = ids[(ids < 1) | (ids > last)]
            raise LeaseError(action, foreign.tolist(), f"the pool has the ids 1 to {last}")
        twice = ids[1:] == ids[:-1]
        if np.count_nonzero(twice):
            raise LeaseError(action, ids[1:][twice].tolist(), "given twice")
        return ids

    def _holders_by_page(self, ids: Ids) -> tuple[VmmPages, NDArray[np.int64]]:
        """The VMM pages of ascending `ids`, each once, and how many of the ids lie on each."""
        pages = self._geometry.vmm_pages_of(ids)
        changes = np.empty(pages.size + 1, dtype=np.bool_)
        changes[0] = changes[-1] = True
        np.not_equal(pages[1:], pages[:-1], out=changes[1:-1])
        (starts,) = changes.nonzero()
        return pages[starts[:-1]], starts[1:] - starts[:-1]
