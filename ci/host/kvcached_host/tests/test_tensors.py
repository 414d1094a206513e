# SPDX-License-Identifier: Apache-2.0
"""kvcached's tensors over the stand-in: mapping, bytes, memory, and what failures leave behind."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from kvcached import vmm_ops
from kvcached.errors import MapQuarantinedError, StateConsistencyError

from kvstrata_host import vmm
from kvstrata_host.vmm import Call

from .conftest import PAGE_BYTES, Pool, make_pool
from .test_vmm import resident_shared_bytes

pytestmark = pytest.mark.integration


def offsets(*pages: int) -> list[int]:
    return [page * PAGE_BYTES for page in pages]


def created_pages() -> int:
    return vmm.state().created_bytes // PAGE_BYTES


def test_a_pool_takes_one_zero_page_until_it_is_mapped(kvcached: None) -> None:
    before = vmm.state()
    pool = make_pool(pages=8, layers=3)
    after = vmm.state()

    assert after.created_bytes - before.created_bytes == PAGE_BYTES
    assert after.reserved_bytes - before.reserved_bytes == 3 * 8 * PAGE_BYTES
    assert after.mapped_bytes - before.mapped_bytes == 3 * 8 * PAGE_BYTES
    assert [tensor.device.type for tensor in pool.tensors] == ["cpu"] * 3
    assert all(tensor.numel() == 8 * PAGE_BYTES for tensor in pool.tensors)


def test_a_mapped_page_is_of_its_own_in_each_layer_and_survives_its_neighbours(pool: Pool) -> None:
    before = created_pages()
    vmm_ops.map_to_kv_tensors(offsets(0, 2, 3), pool.group_id)
    assert created_pages() == before + 3 * pool.layers
    for layer in range(pool.layers):
        for page in (0, 2, 3):
            pool.page(page, layer).fill_(10 * layer + page)

    vmm_ops.unmap_from_kv_tensors(offsets(2), pool.group_id)
    vmm_ops.map_to_kv_tensors(offsets(5, 6), pool.group_id)
    pool.page(5).fill_(99)

    assert created_pages() == before + 4 * pool.layers
    for layer in range(pool.layers):
        for page in (0, 3):
            assert torch.all(pool.page(page, layer) == 10 * layer + page)


def test_an_unmapped_page_reads_the_zero_page_that_all_unmapped_ones_share(pool: Pool) -> None:
    vmm_ops.map_to_kv_tensors(offsets(1), pool.group_id)
    pool.page(1).fill_(7)
    vmm_ops.unmap_from_kv_tensors(offsets(1), pool.group_id)
    assert not pool.page(1).any()

    pool.page(1)[5] = 42

    assert pool.page(4, layer=1)[5] == 42
    vmm_ops.map_to_kv_tensors(offsets(4), pool.group_id)
    assert not pool.page(4, layer=1).any()


def test_resident_memory_follows_what_is_mapped_and_comes_back_to_the_start(pool: Pool) -> None:
    pages = offsets(*range(8))
    resident, committed = resident_shared_bytes(), vmm.state().committed_bytes
    vmm_ops.map_to_kv_tensors(pages, pool.group_id)
    for tensor in pool.tensors:
        tensor.fill_(1)
    whole = 8 * pool.layers * PAGE_BYTES
    assert resident_shared_bytes() - resident == whole
    assert vmm.state().committed_bytes - committed == whole

    vmm_ops.unmap_from_kv_tensors(pages[4:], pool.group_id)
    assert resident_shared_bytes() - resident == whole // 2
    assert vmm.state().committed_bytes - committed == whole // 2

    vmm_ops.unmap_from_kv_tensors(pages[:4], pool.group_id)
    assert resident_shared_bytes() == resident
    assert vmm.state().committed_bytes == committed


def test_a_page_is_mapped_once_however_often_it_is_asked_for(pool: Pool) -> None:
    vmm_ops.map_to_kv_tensors(offsets(1), pool.group_id)
    before = created_pages()

    result = vmm_ops.map_to_kv_tensors_with_result(offsets(1, 2, 2), pool.group_id)

    assert result == (True, offsets(2))
    assert created_pages() == before + pool.layers
    assert vmm_ops.unmap_from_kv_tensors(offsets(7), pool.group_id)
    assert created_pages() == before + pool.layers


def test_an_offset_outside_the_tensor_is_an_error_and_maps_nothing(pool: Pool) -> None:
    before = created_pages()
    for wrong in (8 * PAGE_BYTES, -PAGE_BYTES, 1 << 50):
        with pytest.raises(RuntimeError, match="outside the reserved virtual address range"):
            vmm_ops.map_to_kv_tensors([0, wrong], pool.group_id)
    assert created_pages() == before


CLEAN = {
    "create": [(Call.CREATE, (3,))],
    "map": [(Call.MAP, (3,))],
    "access": [(Call.SET_ACCESS, (3,))],
    "unmap of the zero page": [(Call.UNMAP, (3,))],
}


@pytest.mark.parametrize("failures", CLEAN.values(), ids=CLEAN)
def test_a_map_that_fails_leaves_nothing_behind(
    pool: Pool, failures: list[tuple[Call, tuple[int, ...]]]
) -> None:
    """Page 1 fails in its first layer, after page 0 was mapped in both."""
    before = vmm.state()
    with pytest.raises(RuntimeError, match="out of memory") as raised, failing(failures):
        vmm_ops.map_to_kv_tensors_with_result(offsets(0, 1), pool.group_id)

    assert type(raised.value) is RuntimeError
    assert vmm.state().created_bytes == before.created_bytes
    assert vmm.state().mapped_bytes == before.mapped_bytes
    assert vmm_ops.map_to_kv_tensors_with_result(offsets(0, 1), pool.group_id) == (
        True,
        offsets(0, 1),
    )


QUARANTINED = {
    "the zero page does not come back": [(Call.MAP, (3, 4))],
    "an earlier page does not unmap": [(Call.MAP, (3,)), (Call.UNMAP, (4,))],
    "an earlier page is not released": [(Call.MAP, (3,)), (Call.RELEASE, (1,))],
}


@pytest.mark.parametrize("failures", QUARANTINED.values(), ids=QUARANTINED)
def test_a_map_whose_rollback_fails_quarantines_its_pages(
    pool: Pool, failures: list[tuple[Call, tuple[int, ...]]]
) -> None:
    before = created_pages()
    with pytest.raises(MapQuarantinedError, match="rollback failed"), failing(failures):
        vmm_ops.map_to_kv_tensors_with_result(offsets(0, 1), pool.group_id)

    assert created_pages() == before + 1
    vmm_ops.map_to_kv_tensors(offsets(7), pool.group_id)
    pool.page(7).fill_(1)
    assert created_pages() == before + 1 + pool.layers


def test_an_exhausted_budget_is_an_error_of_the_map_and_goes_away_with_memory(pool: Pool) -> None:
    vmm_ops.map_to_kv_tensors(offsets(0), pool.group_id)
    pool.page(0).fill_(3)
    with vmm.budget(vmm.state().created_bytes + PAGE_BYTES):
        with pytest.raises(RuntimeError, match="out of memory") as raised:
            vmm_ops.map_to_kv_tensors(offsets(1), pool.group_id)
        assert not isinstance(raised.value, (MapQuarantinedError, StateConsistencyError))
        assert vmm.state().created_bytes == vmm.state().budget_bytes - PAGE_BYTES
        vmm_ops.unmap_from_kv_tensors(offsets(0), pool.group_id)
        assert vmm_ops.map_to_kv_tensors(offsets(1), pool.group_id)


@pytest.mark.parametrize("call", [Call.UNMAP, Call.MAP], ids=["unmap", "zero page"])
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_an_unmap_that_fails_leaves_all_pages_mapped_with_their_bytes(
    pool: Pool, call: Call, nth: int
) -> None:
    vmm_ops.map_to_kv_tensors(offsets(0, 1), pool.group_id)
    for layer in range(pool.layers):
        pool.page(0, layer).fill_(5)
        pool.page(1, layer).fill_(6)
    before = vmm.state()

    with pytest.raises(RuntimeError, match="out of memory"), vmm.fail_at(call, nth):
        vmm_ops.unmap_from_kv_tensors(offsets(0, 1), pool.group_id)

    assert vmm.state().created_bytes == before.created_bytes
    for layer in range(pool.layers):
        assert torch.all(pool.page(0, layer) == 5)
        assert torch.all(pool.page(1, layer) == 6)
    assert vmm_ops.unmap_from_kv_tensors(offsets(0, 1), pool.group_id)
    assert vmm.state().created_bytes == before.created_bytes - 2 * pool.layers * PAGE_BYTES


def test_an_unmap_whose_rollback_fails_is_an_inconsistency(pool: Pool) -> None:
    vmm_ops.map_to_kv_tensors(offsets(0, 1), pool.group_id)
    before = created_pages()
    with pytest.raises(StateConsistencyError, match="rollback failed"), vmm.fail_at(Call.MAP, 2, 3):
        vmm_ops.unmap_from_kv_tensors(offsets(0, 1), pool.group_id)
    assert created_pages() == before


def failing(failures: list[tuple[Call, tuple[int, ...]]]) -> ExitStack:
    with ExitStack() as stack:
        for call, nths in failures:
            stack.enter_context(vmm.fail_at(call, *nths))
        return stack.pop_all()
