# SPDX-License-Identifier: Apache-2.0
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstrata.exact_id.errors import LeaseError
from kvstrata.exact_id.geometry import Ids, PoolGeometry
from kvstrata.exact_id.ledger import LeaseLedger

GEOMETRY = PoolGeometry(page_count=20, page_bytes=30, layer_count=2, vmm_page_bytes=100)
STRADDLING = 3  # the bytes 90 to 120
BESIDE = 4  # the bytes 120 to 150


def array(ids: Iterable[int]) -> Ids:
    return np.array(list(ids), dtype=np.int64)


def pages_of(geometry: PoolGeometry, ids: Iterable[int]) -> Counter[int]:
    return Counter(geometry.vmm_pages_of(array(ids)).tolist())


@given(
    geometry=st.builds(
        PoolGeometry,
        page_count=st.integers(1, 25),
        page_bytes=st.integers(1, 50),
        layer_count=st.just(1),
        vmm_page_bytes=st.integers(1, 40),
    ),
    data=st.data(),
)
def test_a_vmm_page_is_wanted_from_its_first_holder_to_its_last(
    geometry: PoolGeometry, data: st.DataObject
) -> None:
    ledger = LeaseLedger(geometry)
    leased = {0}
    for _ in range(data.draw(st.integers(0, 8))):
        before = pages_of(geometry, leased)
        free = sorted(set(range(1, geometry.row_count)) - leased)
        action = data.draw(st.sampled_from(["lease", "release", "clear"]))
        source = free if action == "lease" else sorted(leased - {0})
        ids = data.draw(st.permutations(source)) if source else []
        ids = ids[: data.draw(st.integers(0, len(ids)))]
        if action == "lease":
            leased |= set(ids)
            changed = ledger.lease(array(ids)).tolist()
            assert changed == sorted(pages_of(geometry, leased).keys() - before.keys())
        else:
            leased = {0} if action == "clear" else leased - set(ids)
            changed = (ledger.clear() if action == "clear" else ledger.release(array(ids))).tolist()
            assert changed == sorted(before.keys() - pages_of(geometry, leased).keys())
        now = pages_of(geometry, leased)
        assert ledger.holders.tolist() == [now[page] for page in range(geometry.vmm_page_count)]
        assert ledger.held_pages.tolist() == sorted(now)
        assert ledger.leased_ids.tolist() == sorted(leased - {0})


def test_the_page_of_row_0_is_held_from_the_start_and_after_a_clear() -> None:
    ledger = LeaseLedger(GEOMETRY)

    assert ledger.held_pages.tolist() == [0]
    ledger.lease(array([1, 2]))
    assert ledger.release(array([1, 2])).tolist() == []
    ledger.clear()
    assert ledger.held_pages.tolist() == [0]


def test_a_vmm_page_that_a_straddling_id_shares_stays_while_its_neighbour_does() -> None:
    ledger = LeaseLedger(GEOMETRY)

    assert ledger.lease(array([STRADDLING])).tolist() == [1]
    assert ledger.lease(array([BESIDE])).tolist() == []
    assert ledger.release(array([STRADDLING])).tolist() == []
    assert ledger.release(array([BESIDE])).tolist() == [1]


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
    ledger = LeaseLedger(GEOMETRY)
    ledger.lease(array([3, 4]))
    before = ledger.holders.tolist()

    with pytest.raises(LeaseError, match=problem) as caught:
        getattr(ledger, action)(array(ids))

    assert list(caught.value.ids) == offending
    assert ledger.holders.tolist() == before
    assert ledger.leased_ids.tolist() == [3, 4]


def test_the_callers_ids_are_left_as_they_are() -> None:
    ids = array([7, 2, 5])

    LeaseLedger(GEOMETRY).lease(ids)

    assert ids.tolist() == [7, 2, 5]
