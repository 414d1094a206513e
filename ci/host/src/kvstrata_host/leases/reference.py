# SPDX-License-Identifier: Apache-2.0
"""A plain model of managed pools and their allocators: sets of ids, and no memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from kvstrata.exact_id.geometry import PoolGeometry


@dataclass
class Side:
    """What one managed pool must look like."""

    geometry: PoolGeometry
    leased: set[int] = field(default_factory=set)
    overdue: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    limit: int = 0

    def __post_init__(self) -> None:
        self.limit = self.geometry.vmm_page_count

    def vmm_pages(self, ids: set[int] | list[int]) -> set[int]:
        """By the definition: the VMM pages of the first to the last byte of each id."""
        size, unit = self.geometry.page_bytes, self.geometry.vmm_page_bytes
        return {
            page
            for each in ids
            for page in range(each * size // unit, ((each + 1) * size - 1) // unit + 1)
        }

    @property
    def held(self) -> set[int]:
        return self.vmm_pages(self.leased | {0})

    @property
    def mapped(self) -> set[int]:
        return self.held | self.overdue

    def new_pages(self, ids: list[int]) -> set[int]:
        return self.vmm_pages(ids) - self.mapped

    def has_room_for(self, ids: list[int]) -> bool:
        new = self.new_pages(ids)
        return not new or len(self.mapped) + len(new) <= self.limit

    @property
    def is_constrained(self) -> bool:
        left = self.geometry.vmm_page_count - len(self.lost) - len(self.mapped)
        return max(0, self.limit - len(self.mapped)) < left

    def leasable(self, ids: list[int]) -> int:
        """How many of `ids`, from the first one on, have memory or may get some.

        Above the limit, no more than will surely fit beside the leased ones.
        """
        room = self.limit - len(self.mapped)
        fitting = len(ids)
        if room < 0:
            fitting = self.limit * self.whole_count - len(self.leased)
        for count in range(len(ids)):
            if len(self.new_pages(ids[: count + 1])) > max(0, room):
                return min(count, fitting)
        return min(len(ids), fitting)

    @property
    def whole_count(self) -> int:
        """How many ids lie wholly on a VMM page, at least."""
        size, unit = self.geometry.page_bytes, self.geometry.vmm_page_bytes
        starts = range(0, size * unit, unit)
        return min((start + unit) // size - ceil(start / size) for start in starts)

    def take(self, ids: list[int]) -> None:
        self.leased |= set(ids)
        self.overdue -= self.vmm_pages(ids)

    def give(self, ids: list[int]) -> set[int]:
        """Returns the VMM pages that are to be unmapped."""
        before = self.mapped
        self.leased -= set(ids)
        gone = before - self.held
        # Overdue pages are tried again whenever something is unmapped.
        if gone - self.overdue:
            self.overdue = set()
            return gone
        return set()

    def clear(self) -> None:
        if self.held - self.vmm_pages([0]):
            self.overdue = set()
        self.leased = set()


@dataclass
class Space:
    """What one allocator and the managed pools that follow its ids must look like."""

    last: int
    sides: dict[str, Side]
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def has_room_for(self, ids: list[int]) -> bool:
        return all(side.has_room_for(ids) for side in self.sides.values())

    @property
    def upcoming(self) -> list[int]:
        """The free ids in the order in which they are taken.

        Where not all may have memory, those with some come first, and the others ascending.
        """
        if not any(side.is_constrained for side in self.sides.values()):
            return self.free
        lacking = {
            each for each in self.free if any(s.new_pages([each]) for s in self.sides.values())
        }
        return [each for each in self.free if each not in lacking] + sorted(lacking)

    @property
    def leasable(self) -> int:
        if not any(side.is_constrained for side in self.sides.values()):
            return len(self.free)
        return min(side.leasable(self.upcoming) for side in self.sides.values())

    def take(self, count: int) -> list[int]:
        if count:
            self.free = self.upcoming
        taken, self.free = self.free[:count], self.free[count:]
        for side in self.sides.values():
            side.take(taken)
        return taken

    def give(self, ids: list[int]) -> dict[str, set[int]]:
        """Returns the VMM pages of each pool that are to be unmapped."""
        self.free = ids + self.free
        return {name: side.give(ids) for name, side in self.sides.items()}

    def lose(self, name: str, pages: set[int]) -> None:
        self.sides[name].lost |= pages
        self._withdraw()

    def clear(self) -> None:
        for side in self.sides.values():
            side.clear()
        self.free = list(range(1, self.last + 1))
        self._withdraw()

    def _withdraw(self) -> None:
        for side in self.sides.values():
            self.free = [each for each in self.free if not side.vmm_pages([each]) & side.lost]


@dataclass
class Request:
    """A request by its pages: full ids, and the SWA id of each page that still has a window."""

    full: list[int]
    swa: list[int]
    retired: int = 0
