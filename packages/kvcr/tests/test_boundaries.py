# SPDX-License-Identifier: Apache-2.0
"""Which prefix lengths may be resumed at."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstrata.kvcr.boundaries import PoolPresence, as_mask, legal_boundaries, longest

PAGES = st.integers(0, 8)


def is_legal(length: int, pools: Sequence[PoolPresence]) -> bool:
    """The definition, word by word."""
    if not any(pool.window_pages is None for pool in pools):
        return False
    for pool in pools:
        first = 0 if pool.window_pages is None else max(0, length - pool.window_pages)
        if not all(pool.pages[first:length]):
            return False
    return True


@st.composite
def prefixes(draw: st.DrawFn) -> tuple[int, list[PoolPresence]]:
    count = draw(PAGES)
    presence = st.lists(st.booleans(), min_size=count, max_size=count)
    window = st.none() | st.integers(1, 10)
    return count, draw(st.lists(st.builds(PoolPresence, presence, window), max_size=4))


@given(prefixes())
def test_boundaries_are_the_lengths_that_the_definition_allows(
    prefix: tuple[int, list[PoolPresence]],
) -> None:
    count, pools = prefix
    expected = [length for length in range(1, count + 1) if is_legal(length, pools)]
    assert legal_boundaries(count, pools) == expected


@given(PAGES.flatmap(lambda n: st.tuples(st.just(n), *[st.sets(st.integers(0, n))] * 3)))
def test_the_minimum_of_masks_is_the_intersection_of_boundaries(
    ranks: tuple[int, set[int], set[int], set[int]],
) -> None:
    count, *sets = ranks
    masks = [as_mask(boundaries, count) for boundaries in sets]
    reduced = [min(column) for column in zip(*masks, strict=True)]
    assert len(reduced) == count + 1
    assert longest(reduced) == max(set.intersection(*sets), default=0)


def test_checkpoints_at_two_and_five_pages_are_never_three_or_four() -> None:
    kv = PoolPresence([True] * 6)
    state = PoolPresence([False, True, False, False, True, False], window_pages=1)
    assert legal_boundaries(6, [kv, state]) == [2, 5]


def test_ranks_with_checkpoints_two_five_and_two_four_agree_on_two() -> None:
    masks = as_mask([2, 5], 6), as_mask([2, 4], 6)
    assert longest([min(pair) for pair in zip(*masks, strict=True)]) == 2


def test_without_a_pool_that_needs_all_pages_there_is_no_boundary() -> None:
    assert legal_boundaries(3, []) == []
    assert legal_boundaries(3, [PoolPresence([True] * 3, window_pages=1)]) == []
    assert legal_boundaries(3, [PoolPresence([True] * 3)]) == [1, 2, 3]


def test_an_indexer_shorter_than_kv_ends_the_prefix() -> None:
    kv, indexer = PoolPresence([True] * 4), PoolPresence([True, True, False, True])
    assert legal_boundaries(4, [kv, indexer]) == [1, 2]


def test_a_window_reaching_before_the_first_page_needs_the_pages_there_are() -> None:
    kv, window = PoolPresence([True] * 3), PoolPresence([True] * 3, window_pages=2)
    assert legal_boundaries(3, [kv, window]) == [1, 2, 3]


def test_no_boundary_is_a_miss() -> None:
    assert longest(as_mask([], 4)) == 0
    assert longest([]) == 0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix of 3"):
        legal_boundaries(3, [PoolPresence([True] * 2)])
    with pytest.raises(ValueError, match="at least one page"):
        PoolPresence([True], window_pages=0)
    with pytest.raises(ValueError, match="outside 0 to 4"):
        as_mask([5], 4)
