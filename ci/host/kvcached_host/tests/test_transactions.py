# SPDX-License-Identifier: Apache-2.0
"""kvcached's unmap in two steps: prepare, then commit or abort."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kvcached import vmm_ops
from kvcached.errors import StateConsistencyError

from kvstrata_host import vmm
from kvstrata_host.vmm import Call

from .conftest import PAGE_BYTES, Pool
from .test_tensors import created_pages, offsets

pytestmark = pytest.mark.integration


@pytest.fixture
def filled(pool: Pool) -> Pool:
    """Pages 0 and 1 are mapped, and full of 5 and 6."""
    vmm_ops.map_to_kv_tensors(offsets(0, 1), pool.group_id)
    for layer in range(pool.layers):
        pool.page(0, layer).fill_(5)
        pool.page(1, layer).fill_(6)
    return pool


def test_a_prepared_page_reads_zero_and_keeps_its_memory_until_the_commit(filled: Pool) -> None:
    before = created_pages()
    assert vmm_ops.prepare_unmap_from_kv_tensors(offsets(0), "one", filled.group_id)
    assert not filled.page(0).any()
    assert torch.all(filled.page(1) == 6)
    assert created_pages() == before
    committed = vmm.state().committed_bytes

    assert vmm_ops.commit_unmap_from_kv_tensors("one", filled.group_id)

    assert created_pages() == before - filled.layers
    assert vmm.state().committed_bytes == committed - filled.layers * PAGE_BYTES
    assert torch.all(filled.page(1) == 6)


def test_an_abort_brings_the_bytes_back(filled: Pool) -> None:
    before = created_pages()
    vmm_ops.prepare_unmap_from_kv_tensors(offsets(0, 1), "two", filled.group_id)

    assert vmm_ops.abort_unmap_from_kv_tensors("two", filled.group_id)

    assert created_pages() == before
    for layer in range(filled.layers):
        assert torch.all(filled.page(0, layer) == 5)
        assert torch.all(filled.page(1, layer) == 6)


def test_nothing_else_is_mapped_or_unmapped_while_one_is_pending(filled: Pool) -> None:
    group_id = filled.group_id
    vmm_ops.prepare_unmap_from_kv_tensors(offsets(0), "pending", group_id)
    refusals: tuple[Callable[[], object], ...] = (
        lambda: vmm_ops.map_to_kv_tensors(offsets(3), group_id),
        lambda: vmm_ops.map_to_kv_tensors_with_result(offsets(3), group_id),
        lambda: vmm_ops.unmap_from_kv_tensors(offsets(1), group_id),
        lambda: vmm_ops.prepare_unmap_from_kv_tensors(offsets(1), "other", group_id),
    )
    for refused in refusals:
        with pytest.raises(RuntimeError, match="pending"):
            refused()
    vmm_ops.abort_unmap_from_kv_tensors("pending", group_id)
    assert vmm_ops.map_to_kv_tensors(offsets(3), group_id)


def test_outcomes_are_remembered_by_id(filled: Pool) -> None:
    group_id = filled.group_id
    with pytest.raises(ValueError, match="must not be empty"):
        vmm_ops.prepare_unmap_from_kv_tensors(offsets(0), "", group_id)
    with pytest.raises(RuntimeError, match="unknown unmap transaction"):
        vmm_ops.commit_unmap_from_kv_tensors("never", group_id)
    assert vmm_ops.abort_unmap_from_kv_tensors("early", group_id)
    with pytest.raises(RuntimeError, match="already aborted"):
        vmm_ops.prepare_unmap_from_kv_tensors(offsets(0), "early", group_id)
    vmm_ops.prepare_unmap_from_kv_tensors(offsets(0), "done", group_id)
    assert vmm_ops.prepare_unmap_from_kv_tensors(offsets(0), "done", group_id)
    vmm_ops.commit_unmap_from_kv_tensors("done", group_id)
    assert vmm_ops.commit_unmap_from_kv_tensors("done", group_id)
    with pytest.raises(RuntimeError, match="committed"):
        vmm_ops.abort_unmap_from_kv_tensors("done", group_id)
    assert torch.all(filled.page(1) == 6)


def test_a_commit_that_fails_is_made_again_and_not_aborted(filled: Pool) -> None:
    group_id, before = filled.group_id, created_pages()
    vmm_ops.prepare_unmap_from_kv_tensors(offsets(0), "again", group_id)
    with pytest.raises(StateConsistencyError, match="release"), vmm.fail_at(Call.RELEASE, 2):
        vmm_ops.commit_unmap_from_kv_tensors("again", group_id)
    assert created_pages() == before - 1
    with pytest.raises(StateConsistencyError, match="cannot abort"):
        vmm_ops.abort_unmap_from_kv_tensors("again", group_id)

    assert vmm_ops.commit_unmap_from_kv_tensors("again", group_id)

    assert created_pages() == before - filled.layers


def test_a_prepare_that_fails_leaves_no_transaction(filled: Pool) -> None:
    group_id, before = filled.group_id, created_pages()
    with pytest.raises(RuntimeError, match="out of memory"), vmm.fail_at(Call.UNMAP, 2):
        vmm_ops.prepare_unmap_from_kv_tensors(offsets(0), "failed", group_id)

    assert torch.all(filled.page(0) == 5)
    assert vmm_ops.unmap_from_kv_tensors(offsets(0), group_id)
    assert created_pages() == before - filled.layers


def test_an_abort_that_fails_is_an_inconsistency_that_keeps_the_memory(filled: Pool) -> None:
    before = created_pages()
    vmm_ops.prepare_unmap_from_kv_tensors(offsets(0), "lost", filled.group_id)
    with pytest.raises(StateConsistencyError, match="rollback failed"), vmm.fail_at(Call.MAP):
        vmm_ops.abort_unmap_from_kv_tensors("lost", filled.group_id)
    assert created_pages() == before
