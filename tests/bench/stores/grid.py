# SPDX-License-Identifier: Apache-2.0
"""Which pages are moved: how large, and how many at a time."""

from dataclasses import dataclass

_KIB, _MIB = 1 << 10, 1 << 20

MOST_BYTES = 32 * _MIB
"""No point of the grid moves more at a time."""


@dataclass(frozen=True, order=True)
class Point:
    """`pages` pages of `page_bytes` in one call."""

    page_bytes: int
    pages: int

    @property
    def total_bytes(self) -> int:
        return self.page_bytes * self.pages

    def __str__(self) -> str:
        return f"{self.pages:,} x {size(self.page_bytes)}"


HEADLINE = Point(512 * _KIB, 64)
"""The point that the limits are about."""

MANY = Point(4 * _KIB, 1024)
"""The point at which a query is held against its limit."""


def size(count: int) -> str:
    """A number of bytes that is a whole number of KiB or MiB."""
    return f"{count // _MIB} MiB" if count % _MIB == 0 else f"{count // _KIB} KiB"


def full() -> tuple[Point, ...]:
    """4 KiB to 4 MiB, 1 to 1,024 pages, as far as MOST_BYTES allows.

    By size, the headline's first, and the most pages of a size first.
    """
    sizes = (HEADLINE.page_bytes, MANY.page_bytes, 32 * _KIB, 4 * _MIB)
    counts = (1024, 256, 64, 8, 1)
    points = (Point(page_bytes, pages) for page_bytes in sizes for pages in counts)
    return tuple(point for point in points if point.total_bytes <= MOST_BYTES)


def quick() -> tuple[Point, ...]:
    """The points that the limits are about."""
    return (HEADLINE, MANY)


def by_size(points: tuple[Point, ...]) -> dict[int, tuple[Point, ...]]:
    """The points of each page size, in their order."""
    sizes = dict.fromkeys(point.page_bytes for point in points)
    return {each: tuple(p for p in points if p.page_bytes == each) for each in sizes}
