# SPDX-License-Identifier: Apache-2.0
"""Legal resume boundaries: the prefix lengths that a request may be restored to.

Trailing pools (sliding windows, Mamba states) hold only some pages, so a prefix of 5 pages can be
restorable where one of 4 is not. Ranks and pools therefore agree on sets of lengths, never on
maxima.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress


@dataclass(frozen=True)
class PoolPresence:
    """Which pages of a prefix one pool holds.

    Args:
        pages: for each page of the queried prefix, whether its bytes can be had.
        window_pages: how many pages before a boundary the pool needs; None means all of them.

    A logical anchor has no bytes and therefore no presence.
    """

    pages: Sequence[bool]
    window_pages: int | None = None

    def __post_init__(self) -> None:
        if self.window_pages is not None and self.window_pages < 1:
            raise ValueError(f"a trailing pool needs at least one page, got {self.window_pages}")


def legal_boundaries(page_count: int, required: Iterable[PoolPresence]) -> list[int]:
    """All lengths of 1 to ``page_count`` pages that every required pool can resume at, ascending.

    Empty unless at least one pool needs all pages of a prefix: a trailing pool alone says nothing
    about the pages before its window. Raises ValueError for a pool of another length.
    """
    pools = list(required)
    if all(pool.window_pages is not None for pool in pools):
        return []
    legal = [True] * page_count
    for pool in pools:
        if len(pool.pages) != page_count:
            raise ValueError(f"{len(pool.pages)} pages given for a prefix of {page_count}")
        if pool.window_pages is None:
            whole = pool.pages.index(False) if False in pool.pages else page_count
            legal[whole:] = [False] * (page_count - whole)
            continue
        run = 0
        for i, present in enumerate(pool.pages):
            run = run + 1 if present else 0
            legal[i] = legal[i] and run >= min(i + 1, pool.window_pages)
    return list(compress(range(1, page_count + 1), legal))


def as_mask(boundaries: Iterable[int], page_count: int) -> list[int]:
    """1 at each boundary, 0 elsewhere; shape [page_count + 1], so that ranks can take the minimum.

    Raises ValueError for a boundary outside 0 to ``page_count``.
    """
    mask = [0] * (page_count + 1)
    for boundary in boundaries:
        if not 0 <= boundary <= page_count:
            raise ValueError(f"boundary {boundary} is outside 0 to {page_count}")
        mask[boundary] = 1
    return mask


def longest(mask: Sequence[int]) -> int:
    """The longest boundary in a mask; 0 if there is none."""
    return max((length for length, legal in enumerate(mask) if legal), default=0)
