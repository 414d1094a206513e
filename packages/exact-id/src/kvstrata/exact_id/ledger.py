# SPDX-License-Identifier: Apache-2.0
"""Which page ids of an id space are leased, and which VMM pages that needs."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from .errors import LeaseError
from .geometry import Ids, PoolGeometry, VmmPages
from .holders import PageHolders


class LeaseLedger:
    """Leases on the ids of one id space, over all pools that follow it.

    Every call is all or nothing, and answers with the VMM pages of each pool that it concerns,
    ascending; pools without any are left out. The cost of a call depends on the number of its ids
    alone. Row 0 is held for good. Pools are added before the first lease.
    """

    def __init__(self) -> None:
        self._geometries: dict[str, PoolGeometry] = {}
        self._last_id = 0
        self._leased: set[int] = set()

    def add(self, pool: str, geometry: PoolGeometry) -> None:
        """Let a pool follow the ids; those that not every pool has cannot be leased."""
        self._geometries[pool] = geometry
        self._last_id = min(each.page_count for each in self._geometries.values())
        self._holders = PageHolders(self._geometries, self._last_id + 1)

    def lease(self, ids: Sequence[int]) -> Mapping[str, VmmPages]:
        """Lease `ids`; gives the VMM pages that nobody held before.

        Raises LeaseError, with nothing changed, if an id is not one of all pools, occurs twice or
        is leased already.
        """
        chosen = self._checked("lease", ids)
        if not chosen.isdisjoint(self._leased):
            raise LeaseError("lease", sorted(chosen & self._leased), "leased already")
        self._leased |= chosen
        return self._holders.hold(chosen)

    def release(self, ids: Sequence[int]) -> Mapping[str, VmmPages]:
        """Give `ids` back; gives the VMM pages that nobody holds any more.

        Raises LeaseError, with nothing changed, if an id is not one of all pools, occurs twice or
        is not leased.
        """
        chosen = self._checked("release", ids)
        if not chosen <= self._leased:
            raise LeaseError("release", sorted(chosen - self._leased), "not leased")
        self._leased -= chosen
        return self._holders.let_go(chosen)

    def clear(self) -> Mapping[str, VmmPages]:
        """Give back all ids; gives the VMM pages that nobody holds any more."""
        return self.release(list(self._leased))

    @property
    def leased_ids(self) -> Ids:
        """The leased ids, ascending, without row 0."""
        return np.array(sorted(self._leased), dtype=np.int64)

    @property
    def leased_count(self) -> int:
        """How many ids are leased, without row 0."""
        return len(self._leased)

    def holders(self, pool: str) -> list[int]:
        """How many leased rows lie on each VMM page of a pool; a copy."""
        return self._holders.of(pool)

    def held_pages(self, pool: str) -> VmmPages:
        """The VMM pages of a pool that somebody holds, ascending."""
        return np.flatnonzero(self.holders(pool))

    def _checked(self, action: str, ids: Sequence[int]) -> set[int]:
        chosen = set(ids)
        if chosen and not 1 <= min(chosen) <= max(chosen) <= self._last_id:
            foreign = sorted(each for each in chosen if not 1 <= each <= self._last_id)
            raise LeaseError(action, foreign, f"the pool has the ids 1 to {self._last_id}")
        if len(chosen) != len(ids):
            twice = sorted(each for each, times in Counter(ids).items() if times > 1)
            raise LeaseError(action, twice, "given twice")
        return chosen
