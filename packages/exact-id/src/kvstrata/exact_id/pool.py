# SPDX-License-Identifier: Apache-2.0
"""One managed pool: memory under the ids that are leased, within a limit."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .backing import Backing
from .errors import AllocationMiss
from .geometry import Ids, PoolGeometry, VmmPages
from .ledger import LeaseLedger
from .limits import LimitState, MemoryLimit, Segment, free_segment_name
from .physical import Reading
from .readiness import Barrier

if TYPE_CHECKING:
    import torch


class ManagedPool:
    """Ids that are leased have memory; ids that are not may have none."""

    def __init__(
        self,
        name: str,
        geometry: PoolGeometry,
        ledger: LeaseLedger,
        device: str,
        barrier: Barrier,
        free_bytes: Reading,
    ) -> None:
        self.name = name
        self.geometry = geometry
        self.ledger = ledger
        self.backing = Backing(name, geometry, device, barrier)
        self._barrier = barrier
        self._free_bytes = free_bytes
        self._limit = MemoryLimit(geometry)
        self._segment: Segment | None = None
        self._seen_bytes = geometry.virtual_bytes
        self._bundle_bytes = geometry.bundle_bytes

    def create(self, dtype: "torch.dtype") -> "list[torch.Tensor]":
        """Reserve virtual memory; returns the rows of each layer as `dtype`."""
        rows = self.backing.create(dtype)
        self._segment = Segment(free_segment_name(self.name), self.geometry.virtual_bytes)
        return rows

    def hold_row_0(self) -> None:
        """Give row 0 its memory, for good."""
        self.map(self.ledger.held_pages(self.name))

    def map(self, pages: VmmPages) -> None:
        """Give VMM pages memory; AllocationMiss, with nothing changed, where there is none."""
        new = pages.size - int(np.count_nonzero(self.backing.is_mapped(pages)))
        if new and new > self.room_count:
            raise AllocationMiss(
                self.name, f"{new} more VMM pages are needed; {self.room_count} may be mapped"
            )
        self.backing.map(pages)
        if new:
            self._publish()

    def unmap(self, pages: VmmPages) -> None:
        """Take memory away that nobody reads or writes any more."""
        self.backing.unmap(pages)
        self._publish()

    @property
    def room_count(self) -> int:
        """How many VMM pages may be mapped in addition, by the limit and by the device."""
        return max(0, self._spare_count)

    @property
    def is_constrained(self) -> bool:
        """Whether the pool may not map all of itself."""
        missing = self.backing.usable_count - self.backing.mapped_count
        return missing > 0 and self._spare_count < missing

    def lacks_memory(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of `ids` lie, at least in part, on VMM pages without memory."""
        spans = self.geometry.span_of(ids)
        mapped = self.backing.is_mapped(self.geometry.vmm_pages_of(ids))
        lacks: NDArray[np.bool_] = ~np.logical_and.reduceat(mapped, spans.cumsum() - spans)
        return lacks

    def leasable_count(self, ids: Ids) -> int:
        """How many of `ids`, from the first one on, can be leased now."""
        room = self.room_count
        pages = self.geometry.vmm_pages_of(ids)
        owner = np.repeat(np.arange(ids.size), self.geometry.span_of(ids))
        _, firsts = np.unique(pages, return_index=True)
        firsts = firsts[~self.backing.is_mapped(pages[firsts])]
        wanted = np.bincount(owner[firsts], minlength=ids.size).cumsum()
        return int(np.count_nonzero(wanted <= room))

    @property
    def mapped_bytes(self) -> int:
        return self.backing.mapped_bytes

    @property
    def lost_ids(self) -> Ids:
        """Ids that can never be leased again, since they lie on quarantined memory."""
        return self.geometry.ids_on(self.backing.quarantined_pages)

    @property
    def segment_name(self) -> str | None:
        """What kvcached's tools know the pool as; None before it was created."""
        return None if self._segment is None else self._segment.name

    @property
    def limit_state(self) -> LimitState:
        self._follow_operator()
        return self._limit.state(self.mapped_bytes)

    def set_memory_limit(self, limit_bytes: int, *, revision: int) -> LimitState:
        """Put a limit in force, unless its revision is older or taken by another limit."""
        self._barrier.check()
        self._follow_operator()
        return self._limit.set(limit_bytes, revision=revision, mapped_bytes=self.mapped_bytes)

    def close(self) -> None:
        """Remove the shared-memory segment."""
        if self._segment is not None:
            self._segment.close()

    @property
    def fitting_count(self) -> int:
        """How many ids can be leased in addition before the pool is beyond what it may map.

        Where it is so already, those that surely fit, less those that are leased.
        """
        spare = self._spare_count
        if spare >= 0:
            return self.geometry.page_count - self.ledger.leased_count
        fitting = self.geometry.whole_count(self.backing.mapped_count + spare)
        return fitting - self.ledger.leased_count

    @property
    def _spare_count(self) -> int:
        """How many more VMM pages may be mapped; below 0 while more are than the limit allows."""
        self._follow_operator()
        by_limit = self._limit.page_count - self.backing.mapped_count
        return min(by_limit, max(0, self._free_bytes()) // self._bundle_bytes)

    def _follow_operator(self) -> None:
        """Take over a limit that kvctl has set; it comes after every revision so far."""
        if self._segment is None or self._segment.limit_bytes == self._seen_bytes:
            return
        self._seen_bytes = self._segment.limit_bytes
        self._limit.set(
            max(0, self._seen_bytes),
            revision=self._limit.revision + 1,
            mapped_bytes=self.mapped_bytes,
        )

    def _publish(self) -> None:
        self._free_bytes.forget()
        if self._segment is not None:
            self._segment.publish(self.mapped_bytes)
