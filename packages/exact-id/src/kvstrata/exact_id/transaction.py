# SPDX-License-Identifier: Apache-2.0
"""Leases over the managed pools of one model: all or nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from .errors import LeaseError
from .geometry import Ids, PoolGeometry, VmmPages
from .ledger import LeaseLedger
from .physical import FreeBytes, Reading, free_bytes_of
from .pool import ManagedPool
from .readiness import Barrier

if TYPE_CHECKING:
    import torch


class IdSpace(Enum):
    """Whose page ids a pool follows: those of SGLang's full or of its sliding-window allocator."""

    FULL = "full"
    SWA = "swa"

    # Enum would hash the name, in Python, each time that a member is looked up.
    __hash__ = object.__hash__


Fence = Callable[[], None]
"""Returns once nothing that was queued on the device reads or writes pool memory any more."""


class ManagedPools:
    """The managed pools of one model on one device. Not for use by several threads."""

    def __init__(
        self, device: str, *, fence: Fence | None = None, free_bytes: FreeBytes | None = None
    ) -> None:
        self.device = device
        self.barrier = Barrier()
        self._fence = fence or fence_of(device)
        self._free_bytes = Reading(free_bytes or free_bytes_of(device))
        self._spaces: dict[str, IdSpace] = {}
        self._pools: dict[str, ManagedPool] = {}
        self._followers: dict[IdSpace, list[ManagedPool]] = {space: [] for space in IdSpace}
        self._ledgers: dict[IdSpace, LeaseLedger] = {}

    def select(self, name: str, space: IdSpace) -> None:
        """Declare a pool that will be made; no pool is ready before it is."""
        self.barrier.select(name)
        self._spaces[name] = space

    def make(self, name: str, geometry: PoolGeometry, dtype: "torch.dtype") -> "list[torch.Tensor]":
        """Make a selected pool; returns the rows of each layer as `dtype`.

        A failure is one of all pools.
        """
        space = self._spaces[name]
        ledger = self._ledgers.setdefault(space, LeaseLedger())
        try:
            pool = ManagedPool(name, geometry, ledger, self.device, self.barrier, self._free_bytes)
            rows = pool.create(dtype)
            self.barrier.made(name)
        except Exception as error:
            self.barrier.fail(f"pool {name} could not be made: {error}", error)
            raise
        ledger.add(name, geometry)
        self._followers[space].append(pool)
        self._pools[name] = pool
        return rows

    def open(self) -> None:
        """Give every row 0 its memory; all pools are ready then, or have failed."""
        self.barrier.open(self._hold_rows_0)

    def lease(self, wanted: Mapping[IdSpace, Sequence[int]]) -> None:
        """Lease ids in every pool of their spaces.

        Raises AllocationMiss, LeaseError, NotReadyError or PoolFailedError; then no lease and no
        memory of this call is left.
        """
        leased: list[tuple[LeaseLedger, Sequence[int]]] = []
        mapped: list[tuple[ManagedPool, VmmPages]] = []
        try:
            for ledger, ids in self._per_ledger(wanted):
                first_held = ledger.lease(ids)
                leased.append((ledger, ids))
                for name, pages in first_held.items():
                    self._pools[name].map(pages)
                    mapped.append((self._pools[name], pages))
        except BaseException:
            # Nobody knows these ids yet: there is nothing to wait for.
            for ledger, ids in reversed(leased):
                ledger.release(ids)
            for pool, pages in reversed(mapped):
                pool.unmap(pages)
            raise

    def release(self, given: Mapping[IdSpace, Sequence[int]]) -> None:
        """Drop leases in every pool of their spaces, and unmap once the device is done with them.

        Raises LeaseError, with nothing changed, NotReadyError or PoolFailedError.
        """
        released: list[tuple[LeaseLedger, Sequence[int]]] = []
        last_held: dict[str, VmmPages] = {}
        try:
            for ledger, ids in self._per_ledger(given):
                last_held.update(ledger.release(ids))
                released.append((ledger, ids))
        except LeaseError:
            for ledger, ids in reversed(released):
                ledger.lease(ids)
            raise
        self._unmap(last_held)

    def clear(self, space: IdSpace) -> None:
        """Drop all leases of a space; row 0 keeps its memory."""
        self.barrier.check()
        if space in self._ledgers:
            self._unmap(self._ledgers[space].clear())

    def of(self, space: IdSpace) -> Sequence[ManagedPool]:
        """The pools that follow the ids of `space`."""
        return self._followers[space]

    def is_constrained(self, space: IdSpace) -> bool:
        """Whether a limit or the device may keep some ids of `space` from being leased."""
        return any(pool.is_constrained for pool in self.of(space))

    def leasable_count(self, space: IdSpace, ids: Ids) -> int:
        """How many of `ids` can be leased now in every pool of `space`, in the best order."""
        ids = self.mapped_first(space, ids)
        return min((pool.leasable_count(ids) for pool in self.of(space)), default=ids.size)

    def fitting_count(self, space: IdSpace) -> int:
        """How many more ids than are leased surely fit, in every pool of `space` with a debt.

        Below 0 where some leased ones have to be released first.
        """
        return min(pool.fitting_count for pool in self.of(space))

    def mapped_first(self, space: IdSpace, ids: Ids) -> Ids:
        """`ids` with those first, in their order, that have memory in every pool of `space`.

        The others follow in ascending order, so that they share what has to be mapped for them.
        """
        lacks = np.zeros(ids.size, dtype=np.bool_)
        for pool in self.of(space):
            lacks |= pool.lacks_memory(ids)
        return np.concatenate([ids[~lacks], np.sort(ids[lacks])])

    def lost_ids(self, space: IdSpace) -> Ids:
        """Ids that can never be leased again in one of the pools of `space`; ascending."""
        empty = np.empty(0, dtype=np.int64)
        return np.unique(np.concatenate([empty, *(pool.lost_ids for pool in self.of(space))]))

    def close(self) -> None:
        """Remove the shared-memory segments."""
        for pool in self:
            pool.close()

    def __iter__(self) -> Iterator[ManagedPool]:
        return iter(self._pools.values())

    def __getitem__(self, name: str) -> ManagedPool:
        return self._pools[name]

    def _hold_rows_0(self) -> None:
        for pool in self:
            pool.hold_row_0()

    def _per_ledger(
        self, ids: Mapping[IdSpace, Sequence[int]]
    ) -> Iterator[tuple[LeaseLedger, Sequence[int]]]:
        self.barrier.check()
        for space, ledger in self._ledgers.items():
            if space in ids:
                yield ledger, ids[space]

    def _unmap(self, pages: Mapping[str, VmmPages]) -> None:
        if pages:
            self._fence()
            for name, last_held in pages.items():
                self._pools[name].unmap(last_held)


def fence_of(device: str) -> Fence:
    """A fence over all streams of a GPU; host memory needs none."""
    import torch

    if torch.device(device).type != "cuda":
        return lambda: None
    return lambda: torch.cuda.synchronize(device)
