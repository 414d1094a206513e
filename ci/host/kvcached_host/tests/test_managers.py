# SPDX-License-Identifier: Apache-2.0
"""kvcached's page allocator and manager over the stand-in, and their shared-memory segments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kvcached.cli.utils import get_kv_cache_limit
from kvcached.errors import (
    MapQuarantinedError,
    QuarantinedResizeError,
    StateConsistencyError,
)
from kvcached.kv_cache_manager import KVCacheManager
from kvcached.vmm_ops import PageAllocator

from kvstrata_host import vmm
from kvstrata_host.vmm import Call

from .conftest import PAGE_BYTES, Pool
from .test_tensors import created_pages

pytestmark = pytest.mark.integration

BLOCK_BYTES = 64 << 10
BLOCKS_PER_PAGE = PAGE_BYTES // BLOCK_BYTES


def make_allocator(pool: Pool, *, prealloc: bool = False, ipc_name: str = "") -> Any:
    return PageAllocator(
        num_layers=pool.layers,
        mem_size_per_layer=8 * PAGE_BYTES,
        page_size=PAGE_BYTES,
        contiguous_layout=False,
        enable_page_prealloc=prealloc,
        num_kv_buffers=1,
        group_id=pool.group_id,
        ipc_name=ipc_name,
    )


@pytest.fixture
def allocator(pool: Pool) -> Any:
    return make_allocator(pool)


@pytest.fixture
def manager(pool: Pool) -> Iterator[Any]:
    """Eight pages of 32 blocks; block 0 is the null block."""
    made = KVCacheManager(
        num_blocks=8 * BLOCKS_PER_PAGE,
        block_size=64,
        cell_size=BLOCK_BYTES // 64,
        num_layers=pool.layers,
        reserve_null_block=True,
        num_kv_buffers=1,
        group_id=pool.group_id,
        pool_name="tests",
        own_segment=True,
    )
    made.trim()
    yield made
    assert made.shutdown()


def test_an_allocated_page_has_memory_in_each_layer_and_a_freed_one_none(
    pool: Pool, allocator: Any
) -> None:
    before = created_pages()
    pages = [allocator.alloc_page() for _ in range(3)]
    assert [page.page_id for page in pages] == [0, 1, 2]
    assert created_pages() == before + 3 * pool.layers
    pool.page(1).fill_(9)

    allocator.free_pages([0, 2])

    assert created_pages() == before + pool.layers
    assert torch.all(pool.page(1) == 9)
    assert allocator.get_page_state() == {
        "total_pages": 8,
        "free_pages": 7,
        "inuse_pages": 1,
        "reserved_pages": 0,
    }


def test_a_page_that_cannot_be_mapped_is_free_again(allocator: Any) -> None:
    with pytest.raises(RuntimeError, match="Failed to map page 0"), vmm.fail_at(Call.CREATE, 2):
        allocator.alloc_page()
    assert allocator.get_num_free_pages() == 8
    assert allocator.get_transaction_state()["state"] == "HEALTHY"
    assert allocator.alloc_page().page_id == 0


def test_a_page_in_an_unknown_state_is_quarantined_and_ends_resizing(allocator: Any) -> None:
    with pytest.raises(MapQuarantinedError), vmm.fail_at(Call.MAP, 2, 3):
        allocator.alloc_page()

    assert allocator.get_num_free_pages() == 7
    state = allocator.get_transaction_state()
    assert (state["state"], state["quarantined_page_ids"]) == ("DEGRADED", [0])
    assert allocator.alloc_page().page_id == 1
    with pytest.raises(QuarantinedResizeError):
        allocator.resize(4 * PAGE_BYTES)


def test_a_failed_unmap_ends_the_allocator(allocator: Any) -> None:
    page = allocator.alloc_page()
    with pytest.raises(StateConsistencyError), vmm.fail_at(Call.UNMAP):
        allocator.free_page(page.page_id)
    assert allocator.get_transaction_state()["state"] == "FAILED"
    with pytest.raises(StateConsistencyError):
        allocator.alloc_page()


def test_the_pages_that_memory_allows_follow_the_budget(pool: Pool, allocator: Any) -> None:
    """kvcached leaves a twentieth of the device free."""
    with vmm.budget(200 * PAGE_BYTES + vmm.state().created_bytes):
        total = vmm.state().budget_bytes
        free = total - vmm.state().created_bytes
        expected = (free - int(total * (1 - 0.95))) // PAGE_BYTES // pool.layers
        assert abs(allocator.get_avail_physical_pages() - expected) <= 1
        allocator.alloc_page()
        assert abs(allocator.get_avail_physical_pages() - expected + 1) <= 1
    with vmm.budget(0):
        assert allocator.get_avail_physical_pages() == 0


def test_pages_in_reserve_are_mapped_in_the_background_and_trimmed(pool: Pool) -> None:
    """kvcached reserves five pages at first."""
    allocator, before = make_allocator(pool, prealloc=True), created_pages()
    allocator.start_prealloc_thread()
    try:
        assert until(lambda: allocator.get_num_reserved_pages() == 5)
        assert created_pages() == before + 5 * pool.layers
    finally:
        allocator.stop_prealloc_thread()
    allocator.trim()
    assert created_pages() == before


def test_a_failure_in_the_background_leaves_the_pages_to_be_had(pool: Pool) -> None:
    allocator, before = make_allocator(pool, prealloc=True), created_pages()
    failures = vmm.state().failures[Call.CREATE]
    with vmm.fail_at(Call.CREATE, 10):
        allocator.start_prealloc_thread()
        assert until(lambda: vmm.state().failures[Call.CREATE] == failures + 1)
        allocator.stop_prealloc_thread()
    assert created_pages() == before
    assert allocator.get_transaction_state()["state"] == "HEALTHY"
    assert allocator.alloc_page().page_id == 0


def test_a_manager_holds_the_null_block_and_gives_blocks_of_whole_pages(
    pool: Pool, manager: Any
) -> None:
    assert manager.null_block == [0]
    before = created_pages()
    blocks = manager.alloc(BLOCKS_PER_PAGE)
    assert blocks == list(range(1, BLOCKS_PER_PAGE + 1))
    assert created_pages() == before + pool.layers
    pool.tensors[1][blocks[-1] * BLOCK_BYTES :][:BLOCK_BYTES].fill_(3)

    manager.free(blocks)

    assert created_pages() == before
    assert not pool.page(1, layer=1).any()


def test_a_manager_has_no_more_blocks_than_memory(manager: Any) -> None:
    assert manager.available_size() == 8 * BLOCKS_PER_PAGE - 1
    with vmm.budget(vmm.state().created_bytes):
        assert manager.alloc(2 * BLOCKS_PER_PAGE) is None
    with vmm.fail_at(Call.CREATE, 4):
        assert manager.alloc(3 * BLOCKS_PER_PAGE) is None
    assert manager.get_mapped_memory_size() == 2 * PAGE_BYTES
    assert len(manager.alloc(3 * BLOCKS_PER_PAGE)) == 3 * BLOCKS_PER_PAGE


def test_a_limit_below_use_is_deferred_and_applied_by_the_next_free(manager: Any) -> None:
    blocks = manager.alloc(4 * BLOCKS_PER_PAGE)
    bundle = 2 * PAGE_BYTES

    assert manager.set_memory_limit(2 * bundle, revision=1)["status"] == "deferred"
    assert manager.set_memory_limit(8 * bundle, revision=0)["status"] == "stale"
    assert manager.set_memory_limit(8 * bundle, revision=1)["status"] == "conflict"
    manager.free(blocks)
    state = manager.memory_limit_state()

    assert (state["status"], state["current_capacity_bytes"]) == ("applied", 2 * bundle)
    assert manager.set_memory_limit(8 * bundle, revision=2)["status"] == "applied"
    assert manager.alloc(7 * BLOCKS_PER_PAGE) is not None


def test_clear_unmaps_all_pages_but_that_of_the_null_block(manager: Any) -> None:
    start = created_pages()
    manager.alloc(5 * BLOCKS_PER_PAGE)

    manager.clear()

    assert created_pages() == start
    assert manager.null_block == [0]
    assert manager.alloc(2) == [1, 2]


def test_a_pool_has_a_segment_that_kvctl_lists_and_limits(pool: Pool) -> None:
    name = f"kvcached_host_tests_{os.getpid()}_limits"
    allocator = make_allocator(pool, prealloc=True, ipc_name=name)
    allocator.start_prealloc_thread()
    try:
        allocator.alloc_page()
        listed = {entry["ipc"]: entry for entry in json.loads(kvctl("list", "--json"))}
        assert listed[name]["limit_bytes"] == 8 * pool.layers * PAGE_BYTES
        assert listed[name]["used_bytes"] == pool.layers * PAGE_BYTES

        kvctl("limit", name, str(4 * pool.layers * PAGE_BYTES))

        limit = get_kv_cache_limit(name)
        assert limit is not None
        assert limit.total_size == 4 * pool.layers * PAGE_BYTES
        assert until(lambda: allocator.get_resize_target() == 4 * PAGE_BYTES)
    finally:
        allocator.stop_prealloc_thread()
    assert allocator.release_shared_segment()
    assert not Path("/dev/shm", name).exists()


def kvctl(*arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "kvcached.cli.kvctl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def until(holds: Callable[[], bool]) -> bool:
    """Whether it holds within 30 s."""
    end = time.monotonic() + 30
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
