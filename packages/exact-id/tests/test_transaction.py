# SPDX-License-Identifier: Apache-2.0
"""Leases over the real kvcached, with failures where kvcached meets the driver."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from kvstrata.exact_id.errors import AllocationMiss, LeaseError, NotReadyError, PoolFailedError
from kvstrata.exact_id.geometry import Ids, PoolGeometry
from kvstrata.exact_id.readiness import State
from kvstrata.exact_id.transaction import IdSpace, ManagedPools
from kvstrata_host import vmm
from kvstrata_host.vmm import Call

VMM_PAGE_BYTES = 2 << 20
LAYERS = 3
# 7 rows fill 3 VMM pages: of the ids, 2, 4, 9, 11, 16 and 18 lie on two of them.
SMALL = PoolGeometry(20, 3 * VMM_PAGE_BYTES // 7 // 64 * 64, LAYERS, VMM_PAGE_BYTES)
# One VMM page for each row.
LARGE = PoolGeometry(20, VMM_PAGE_BYTES, LAYERS - 1, VMM_PAGE_BYTES)

MakePools = Callable[..., ManagedPools]


def array(ids: Iterable[int]) -> Ids:
    return np.array(list(ids), dtype=np.int64)


def full(*ids: int) -> dict[IdSpace, list[int]]:
    return {IdSpace.FULL: list(ids)}


def created_bytes() -> int:
    return vmm.state().created_bytes


def picture(pools: ManagedPools) -> dict[str, tuple[list[int], list[int], list[int]]]:
    """Of each pool: leased ids, holders and mapped VMM pages."""
    return {
        pool.name: (
            pool.ledger.leased_ids.tolist(),
            pool.ledger.holders(pool.name),
            pool.backing.mapped_pages.tolist(),
        )
        for pool in pools
    }


def test_memory_of_the_device_follows_the_leases_exactly(made_pools: MakePools) -> None:
    before = created_bytes()
    pools = made_pools(c4=SMALL, indexer=LARGE)
    # kvcached keeps one page of zeros for each pool.
    floor = before + 2 * VMM_PAGE_BYTES + SMALL.bundle_bytes + LARGE.bundle_bytes
    assert created_bytes() == floor

    pools.lease(full(3, 4, 5))
    assert pools["c4"].mapped_bytes == 3 * SMALL.bundle_bytes
    assert pools["indexer"].mapped_bytes == 4 * LARGE.bundle_bytes
    assert created_bytes() == floor + 2 * SMALL.bundle_bytes + 3 * LARGE.bundle_bytes

    pools.release(full(4, 3, 5))
    assert created_bytes() == floor


def test_the_ids_of_one_space_leave_the_pools_of_the_other_alone(made_pools: MakePools) -> None:
    pools = made_pools(c4=LARGE, swa=LARGE)

    pools.lease({IdSpace.SWA: [7], IdSpace.FULL: [3]})
    pools.release({IdSpace.SWA: [7]})

    assert pools["c4"].backing.mapped_pages.tolist() == [0, 3]
    assert pools["swa"].backing.mapped_pages.tolist() == [0]


def test_every_layer_has_its_own_bytes_and_keeps_them_while_a_neighbour_goes(
    kvcached: None,
) -> None:
    pools = ManagedPools("cpu")
    pools.select("c4", IdSpace.FULL)
    layers = pools.make("c4", SMALL, torch.uint8)
    pools.open()
    straddling, beside = 4, 5
    pools.lease(full(straddling, beside))
    for number, layer in enumerate(layers):
        layer[straddling] = 10 + number
        layer[beside] = 20 + number

    pools.release(full(straddling))

    for number, layer in enumerate(layers):
        assert layer[beside].eq(20 + number).all()
    shared, alone = SMALL.vmm_pages_of(array([straddling])).tolist()[::-1]
    assert pools["c4"].backing.mapped_pages.tolist() == sorted({0, shared})
    assert alone not in pools["c4"].backing.mapped_pages
    pools.close()


def test_rows_have_the_stride_and_the_type_that_were_asked_for(kvcached: None) -> None:
    pools = ManagedPools("cpu")
    pools.select("c4", IdSpace.FULL)

    layers = pools.make("c4", SMALL, torch.float8_e4m3fn)

    assert [tuple(layer.shape) for layer in layers] == [(21, SMALL.page_bytes)] * LAYERS
    assert {layer.dtype for layer in layers} == {torch.float8_e4m3fn}
    assert {layer.stride() for layer in layers} == {(SMALL.page_bytes, 1)}
    pools.close()


def test_nothing_is_mapped_while_one_pool_is_missing(kvcached: None) -> None:
    pools = ManagedPools("cpu")
    pools.select("c4", IdSpace.FULL)
    pools.select("indexer", IdSpace.FULL)
    pools.make("c4", SMALL, torch.uint8)
    calls = vmm.state().calls
    touches: list[Callable[[], object]] = [
        lambda: pools.lease(full(1)),
        lambda: pools.release(full(1)),
        lambda: pools.clear(IdSpace.FULL),
        lambda: pools["c4"].set_memory_limit(0, revision=1),
        lambda: pools["c4"].backing.map(array([0])),
        lambda: pools["c4"].backing.unmap(array([0])),
    ]

    for touch in touches:
        with pytest.raises(NotReadyError):
            touch()

    assert vmm.state().calls == calls
    assert pools["c4"].mapped_bytes == 0
    assert pools["c4"].limit_state.revision == 0
    pools.close()


def test_a_pool_whose_tensors_kvcached_does_not_make_fails_all(
    kvcached: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcached import vmm_ops

    pools = ManagedPools("cpu")
    pools.select("c4", IdSpace.FULL)
    pools.select("indexer", IdSpace.FULL)
    pools.make("c4", SMALL, torch.uint8)
    monkeypatch.setattr(vmm_ops, "create_kv_tensors", lambda **sizes: [])

    with pytest.raises(PoolFailedError, match="instead of 2 of"):
        pools.make("indexer", LARGE, torch.uint8)

    with pytest.raises(PoolFailedError, match="indexer could not be made"):
        pools.open()
    assert set(pools.barrier.states.values()) == {State.FAILED}
    pools.close()


def test_pools_without_memory_for_row_0_fail_instead_of_serving(kvcached: None) -> None:
    pools = ManagedPools("cpu")
    pools.select("c4", IdSpace.FULL)
    pools.make("c4", SMALL, torch.uint8)

    with vmm.fail_at(Call.CREATE), pytest.raises(PoolFailedError, match="preparing"):
        pools.open()

    with pytest.raises(PoolFailedError):
        pools.lease(full(1))
    pools.close()


# Which driver call of the lease of 5 in c4 (3 layers) and then in the indexer (2 layers) fails.
MISSES = {
    "first layer of the first pool": (Call.CREATE, 1),
    "last layer of the first pool": (Call.CREATE, 3),
    "first layer of the second pool": (Call.CREATE, 4),
    "last layer of the second pool": (Call.CREATE, 5),
    "mapping in the second pool": (Call.MAP, 4),
    "access in the second pool": (Call.SET_ACCESS, 4),
    "taking the page of zeros away in the second pool": (Call.UNMAP, 4),
}


@pytest.mark.parametrize(("call", "nth"), MISSES.values(), ids=MISSES)
def test_a_miss_in_any_pool_leaves_nothing_of_the_call(
    made_pools: MakePools, call: Call, nth: int
) -> None:
    pools = made_pools(c4=SMALL, indexer=LARGE)
    pools.lease(full(1, 9))
    before, bytes_before = picture(pools), created_bytes()

    with vmm.fail_at(call, nth), pytest.raises(AllocationMiss):
        pools.lease(full(5))

    assert picture(pools) == before
    assert created_bytes() == bytes_before
    pools.lease(full(5))
    assert picture(pools) != before


def test_a_straddling_id_whose_second_vmm_page_misses_gives_back_the_first(
    made_pools: MakePools,
) -> None:
    pools = made_pools(c4=SMALL)
    before, bytes_before = picture(pools), created_bytes()
    straddling = 11
    assert SMALL.span_of(array([straddling])).tolist() == [2]

    with vmm.fail_at(Call.CREATE, LAYERS + 1), pytest.raises(AllocationMiss):
        pools.lease(full(straddling))

    assert (picture(pools), created_bytes()) == (before, bytes_before)


def test_memory_that_runs_out_is_a_miss_and_comes_back_with_the_memory(
    made_pools: MakePools,
) -> None:
    pools = made_pools(c4=LARGE)

    with vmm.budget(created_bytes() + LARGE.bundle_bytes):
        pools.lease(full(1))
        with pytest.raises(AllocationMiss, match="out of memory"):
            pools.lease(full(2))
        pools.release(full(1))
        pools.lease(full(2))


def test_a_page_that_kvcached_cannot_roll_back_is_lost_and_the_rest_goes_on(
    made_pools: MakePools,
) -> None:
    pools = made_pools(c4=SMALL, indexer=LARGE)
    before, usable = picture(pools), pools["indexer"].backing.usable_count

    # The second layer of the indexer misses, and then the first cannot be unmapped.
    with ExitStack() as failures:
        failures.enter_context(vmm.fail_at(Call.CREATE, LAYERS + LARGE.layer_count))
        failures.enter_context(vmm.fail_at(Call.UNMAP, LAYERS + LARGE.layer_count + 1))
        with pytest.raises(AllocationMiss) as caught:
            pools.lease(full(5))

    assert caught.value.quarantined == (5,)
    assert picture(pools) == before
    assert pools["indexer"].backing.usable_count == usable - 1
    assert pools.lost_ids(IdSpace.FULL).tolist() == [5]
    assert pools.lost_ids(IdSpace.SWA).tolist() == []
    with pytest.raises(AllocationMiss, match="quarantined"):
        pools.lease(full(5, 6))
    pools.lease(full(6, 7))


def test_an_unmap_that_kvcached_rolls_back_keeps_the_memory_until_the_next_call(
    made_pools: MakePools,
) -> None:
    pools = made_pools(c4=LARGE)
    pools.lease(full(5, 6))

    with vmm.fail_at(Call.UNMAP):
        pools.release(full(5))

    assert pools["c4"].ledger.leased_ids.tolist() == [6]
    assert pools["c4"].backing.mapped_pages.tolist() == [0, 5, 6]
    pools.release(full(6))
    assert pools["c4"].backing.mapped_pages.tolist() == [0]


def test_a_page_that_stayed_mapped_serves_its_next_holder(made_pools: MakePools) -> None:
    pools = made_pools(c4=LARGE)
    pools.lease(full(5, 6))
    with vmm.fail_at(Call.UNMAP):
        pools.release(full(5))
    creates = vmm.state().calls[Call.CREATE]

    pools.lease(full(5))
    pools.release(full(6))

    assert vmm.state().calls[Call.CREATE] == creates
    assert pools["c4"].backing.mapped_pages.tolist() == [0, 5]


def test_memory_that_cannot_be_given_back_stops_every_pool(made_pools: MakePools) -> None:
    pools = made_pools(c4=LARGE, indexer=LARGE)
    pools.lease(full(5))

    with vmm.fail_at(Call.RELEASE), pytest.raises(PoolFailedError, match="restart the server"):
        pools.release(full(5))

    assert set(pools.barrier.states.values()) == {State.FAILED}
    with pytest.raises(PoolFailedError):
        pools.lease(full(6))


def test_kvcached_reporting_another_mapping_stops_the_pools(
    made_pools: MakePools, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcached import vmm_ops

    pools = made_pools(c4=LARGE)
    # Mapped behind the pool's back: kvcached then skips it.
    vmm_ops.map_to_kv_tensors_with_result([5 * VMM_PAGE_BYTES], pools["c4"].backing.group_id)

    with pytest.raises(PoolFailedError, match="was asked for"):
        pools.lease(full(5))


def test_a_fault_of_the_caller_in_the_second_space_undoes_the_first(made_pools: MakePools) -> None:
    pools = made_pools(c4=LARGE, swa=LARGE)
    pools.lease({IdSpace.FULL: [5], IdSpace.SWA: [6]})
    before = picture(pools)

    with pytest.raises(LeaseError, match="not leased"):
        pools.release({IdSpace.FULL: [5], IdSpace.SWA: [7]})
    assert picture(pools) == before
    with pytest.raises(LeaseError, match="leased already"):
        pools.lease({IdSpace.FULL: [8], IdSpace.SWA: [6]})
    assert picture(pools) == before


def test_unmapping_waits_for_the_device_once_and_mapping_does_not(kvcached: None) -> None:
    events: list[tuple[str, int]] = []
    pools = ManagedPools("cpu", fence=lambda: events.append(("fence", created_bytes())))
    for name in ("c4", "indexer"):
        pools.select(name, IdSpace.FULL)
        pools.make(name, LARGE, torch.uint8)
    pools.open()

    pools.lease(full(5, 6))
    assert events == []
    held = created_bytes()
    pools.release(full(5))
    assert events == [("fence", held)]
    pools.lease(full(5))
    pools.clear(IdSpace.FULL)
    assert events == [("fence", held)] * 2
    pools.close()


def test_no_fence_is_paid_for_a_release_that_unmaps_nothing(kvcached: None) -> None:
    events: list[str] = []
    pools = ManagedPools("cpu", fence=lambda: events.append("fence"))
    pools.select("c4", IdSpace.FULL)
    pools.make("c4", SMALL, torch.uint8)
    pools.open()

    pools.lease(full(1))
    pools.release(full(1))

    assert events == []
    pools.close()


def test_a_clear_takes_all_memory_but_that_of_row_0(made_pools: MakePools) -> None:
    pools = made_pools(c4=SMALL, indexer=LARGE)
    before = picture(pools)
    pools.lease(full(*range(1, 21)))

    pools.clear(IdSpace.FULL)

    assert picture(pools) == before


@pytest.mark.parametrize("room", range(7))
def test_the_ids_that_can_be_leased_are_counted_exactly(made_pools: MakePools, room: int) -> None:
    pools = made_pools(c4=SMALL)
    pools.lease(full(7))
    order = array([1, 2, 3, 4, 8, 5, 6, 20, 12, 16])
    pool = pools["c4"]
    wanted = set(SMALL.vmm_pages_of(order)) - set(pool.backing.mapped_pages)
    pool.set_memory_limit(pool.mapped_bytes + room * SMALL.bundle_bytes, revision=1)

    count = pools.leasable_count(IdSpace.FULL, order)

    order = pools.mapped_first(IdSpace.FULL, order)
    pools.lease(full(*order[:count].tolist()))
    if count < order.size:
        with pytest.raises(AllocationMiss):
            pools.lease(full(int(order[count])))
    else:
        assert room >= len(wanted)


def test_what_the_device_has_left_bounds_what_can_be_leased(kvcached: None) -> None:
    left = [2 * LARGE.bundle_bytes]
    pools = ManagedPools("cpu", free_bytes=lambda: left[0])
    pools.select("c4", IdSpace.FULL)
    pools.make("c4", LARGE, torch.uint8)
    pools.open()

    assert pools.leasable_count(IdSpace.FULL, array(range(1, 21))) == 2
    with pytest.raises(AllocationMiss, match="3 more VMM pages are needed; 2 may be mapped"):
        pools.lease(full(1, 2, 3))
    pools.close()
