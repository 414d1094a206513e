# SPDX-License-Identifier: Apache-2.0
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstrata.exact_id.errors import LeaseError
from kvstrata.exact_id.geometry import Ids, PoolGeometry, VmmPages
from kvstrata.exact_id.ledger import LeaseLedger

GEOMETRY = PoolGeometry(page_count=20, page_bytes=30, layer_count=2, vmm_page_bytes=100)
STRADDLING = 3  # the bytes 90 to 120
BESIDE = 4  # the bytes 120 to 150
POOL = "c4"


def array(ids: Iterable[int]) -> Ids:
    return np.array(list(ids), dtype=np.int64)


def made(**geometries: PoolGeometry) -> LeaseLedger:
    ledger = LeaseLedger()
    for pool, geometry in geometries.items():
        ledger.add(pool, geometry)
    return ledger


def by_pool(pages: Mapping[str, VmmPages]) -> dict[str, list[int]]:
    return {pool: each.tolist() for pool, each in pages.items()}


def held(geometries: dict[str, PoolGeometry], ids: Iterable[int]) -> dict[str, Counter[int]]:
    return {
        pool: Counter(geometry.vmm_pages_of(array(ids)).tolist())
        for pool, geometry in geometries.items()
    }


def new_in(now: dict[str, Counter[int]], before: dict[str, Counter[int]]) -> dict[str, list[int]]:
    found = {pool: sorted(pages.keys() - before[pool].keys()) for pool, pages in now.items()}
    return {pool: pages for pool, pages in found.items() if pages}


@given(
    geometries=st.dictionaries(
        st.sampled_from(["c4", "indexer", "another"]),
        st.builds(
            PoolGeometry,
            page_count=st.integers(1, 25),
            page_bytes=st.integers(1, 50),
            layer_count=st.just(1),
            vmm_page_bytes=st.integers(1, 40),
        ),
        min_size=1,
    ),
    data=st.data(),
)
def test_a_vmm_page_is_wanted_from_its_first_holder_to_its_last(
    geometries: dict[str, PoolGeometry], data: st.DataObject
) -> None:
    ledger = made(**geometries)
    page_count = min(geometry.page_count for geometry in geometries.values())
    leased = {0}
    for _ in range(data.draw(st.integers(0, 8))):
        before = held(geometries, leased)
        free = sorted(set(range(1, page_count + 1)) - leased)
        action = data.draw(st.sampled_from(["lease", "release", "clear"]))
        source = free if action == "lease" else sorted(leased - {0})
        ids = data.draw(st.permutations(source)) if source else []
        ids = ids[: data.draw(st.integers(0, len(ids)))]
        if action == "lease":
            leased |= set(ids)
            changed = ledger.lease(ids)
            assert by_pool(changed) == new_in(held(geometries, leased), before)
        else:
            leased = {0} if action == "clear" else leased - set(ids)
            changed = ledger.clear() if action == "clear" else ledger.release(ids)
            assert by_pool(changed) == new_in(before, held(geometries, leased))
        now = held(geometries, leased)
        for pool, geometry in geometries.items():
            counts = [now[pool][page] for page in range(geometry.vmm_page_count)]
            assert ledger.holders(pool) == counts
            assert ledger.held_pages(pool).tolist() == sorted(now[pool])
        assert ledger.leased_ids.tolist() == sorted(leased - {0})
        assert ledger.leased_count == len(leased) - 1


def test_the_page_of_row_0_is_held_from_the_start_and_after_a_clear() -> None:
    ledger = made(c4=GEOMETRY)

    assert ledger.held_pages(POOL).tolist() == [0]
    ledger.lease([1, 2])
    assert by_pool(ledger.release([1, 2])) == {}
    ledger.clear()
    assert ledger.held_pages(POOL).tolist() == [0]


def test_a_vmm_page_that_a_straddling_id_shares_stays_while_its_neighbour_does() -> None:
    ledger = made(c4=GEOMETRY)

    assert by_pool(ledger.lease([STRADDLING])) == {POOL: [1]}
    assert by_pool(ledger.lease([BESIDE])) == {}
    assert by_pool(ledger.release([STRADDLING])) == {}
    assert by_pool(ledger.release([BESIDE])) == {POOL: [1]}


def test_an_id_that_one_of_the_pools_lacks_cannot_be_leased() -> None:
    ledger = made(c4=GEOMETRY, indexer=replace(GEOMETRY, page_count=9))

    assert by_pool(ledger.lease([9])) == {"c4": [2], "indexer": [2]}
    with pytest.raises(LeaseError, match="ids 1 to 9"):
        ledger.lease([10])
    assert ledger.leased_ids.tolist() == [9]


FAULTS = {
    "leasing what is leased": ("lease", [5, 3], [3], "leased already"),
    "leasing an id twice": ("lease", [5, 6, 5], [5], "given twice"),
    "leasing row 0": ("lease", [5, 0], [0], "ids 1 to 20"),
    "leasing beyond the pool": ("lease", [21, 5], [21], "ids 1 to 20"),
    "releasing what is free": ("release", [3, 9], [9], "not leased"),
    "releasing an id twice": ("release", [3, 3], [3], "given twice"),
    "releasing row 0": ("release", [0], [0], "ids 1 to 20"),
    "releasing a negative id": ("release", [3, -1], [-1], "ids 1 to 20"),
}


@pytest.mark.parametrize(("action", "ids", "offending", "problem"), FAULTS.values(), ids=FAULTS)
def test_a_fault_names_the_ids_and_changes_nothing(
    action: str, ids: list[int], offending: list[int], problem: str
) -> None:
    ledger = made(c4=GEOMETRY)
    ledger.lease([3, 4])
    before = ledger.holders(POOL)

    with pytest.raises(LeaseError, match=problem) as caught:
        getattr(ledger, action)(ids)

    assert list(caught.value.ids) == offending
    assert ledger.holders(POOL) == before
    assert ledger.leased_ids.tolist() == [3, 4]
