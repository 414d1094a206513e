# SPDX-License-Identifier: Apache-2.0
"""Leases as such: no id crosses a map."""

from collections.abc import Callable

import torch
from kvcached import vmm_ops
from kvcached.kv_cache_manager import KVCacheManager
from paired import Ratio, in_turn, seconds
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

from kvstrata.exact_id.geometry import PoolGeometry
from kvstrata.exact_id.ledger import LeaseLedger

PAGE_TOKENS = 256
SWA_PAGE_BYTES = 149_760
VMM_PAGE_BYTES = 2 << 20
LAYERS = 4

_FEW, _MANY = 64, 4096
_SMALL_POOL, _LARGE_POOL = 10**3, 10**6
_REPEATS = 20
_MANAGER_GROUP_ID = 1 << 16


class BookkeepingError(RuntimeError):
    """What was timed is not the work that it should have been."""


def measure(rounds: int) -> tuple[Ratio, ...]:
    """Against SGLang's free list, against kvcached's manager, and in pools of two sizes."""
    return _against_sglang(rounds), _against_manager(rounds), _by_pool_size(rounds)


def lease_and_release(page_count: int, count: int) -> Callable[[], None]:
    """Leases and releases `count` ids spread over a pool; their neighbours hold the memory."""
    ledger = LeaseLedger()
    ledger.add("swa", PoolGeometry(page_count, SWA_PAGE_BYTES, LAYERS, VMM_PAGE_BYTES))
    distance = page_count // count
    ids = [distance * number for number in range(1, count)]
    ids.append(ids[-1] + distance // 2)
    ledger.lease(sorted({near for each in ids for near in (each - 1, each + 1)}))

    def work() -> None:
        if ledger.lease(ids) or ledger.release(ids):
            raise BookkeepingError("a VMM page was to be mapped or unmapped")

    return work


def _each(work: Callable[[], None]) -> float:
    """Seconds of one call, over enough calls to be told apart from the clock."""

    def repeat() -> None:
        for _ in range(_REPEATS):
            work()

    return seconds(repeat) / _REPEATS


def _against_sglang(rounds: int) -> Ratio:
    pages = 16 * _FEW
    allocator = PagedTokenToKVPoolAllocator(
        pages * PAGE_TOKENS, PAGE_TOKENS, torch.float8_e4m3fn, "cpu", None, need_sort=False
    )

    def alloc_and_free() -> None:
        allocator.free(allocator.alloc(_FEW * PAGE_TOKENS))

    leases = lease_and_release(pages, _FEW)
    times = in_turn(rounds, lambda _: _each(leases), lambda _: _each(alloc_and_free))
    peer = "SGLang's alloc and free of as many pages"
    return Ratio(f"lease and release of {_FEW} ids", *times, peer=peer, limit=1.0)


def _against_manager(rounds: int) -> Ratio:
    manager = _half_full_manager()

    def alloc_and_free() -> None:
        blocks = manager.alloc(_MANY)
        if blocks is None or len(blocks) != _MANY:
            raise BookkeepingError("kvcached's manager gave other blocks than were asked for")
        manager.free(blocks)

    leases = lease_and_release(4 * _MANY, _MANY)
    times = in_turn(rounds, lambda _: seconds(leases), lambda _: seconds(alloc_and_free))
    if not manager.shutdown():
        raise BookkeepingError("kvcached's manager did not shut down")
    peer = "kvcached's manager, alloc and free of as many blocks"
    return Ratio(f"lease and release of {_MANY:,} ids", *times, peer=peer, limit=1 / 5)


def _half_full_manager() -> KVCacheManager:
    """A manager with as many free blocks as are asked for, on pages that are mapped already."""
    pages = 2 * _MANY * SWA_PAGE_BYTES // VMM_PAGE_BYTES * 5 // 4
    vmm_ops.create_kv_tensors(
        pages * VMM_PAGE_BYTES, 1, "cpu", 1, 1, _MANAGER_GROUP_ID, unified_pool=True
    )
    manager = KVCacheManager(
        num_blocks=pages * VMM_PAGE_BYTES // SWA_PAGE_BYTES,
        block_size=PAGE_TOKENS,
        cell_size=SWA_PAGE_BYTES // PAGE_TOKENS,
        num_layers=1,
        num_kv_buffers=1,
        group_id=_MANAGER_GROUP_ID,
        own_segment=True,
    )
    blocks = manager.alloc(2 * _MANY)
    if blocks is None:
        raise BookkeepingError("kvcached's manager had too few blocks")
    manager.free(blocks[::2])
    return manager


def _by_pool_size(rounds: int) -> Ratio:
    large, small = lease_and_release(_LARGE_POOL, _FEW), lease_and_release(_SMALL_POOL, _FEW)
    times = in_turn(rounds, lambda _: _each(large), lambda _: _each(small))
    return Ratio(
        f"lease and release of {_FEW} ids in a pool of {_LARGE_POOL:,} pages",
        *times,
        peer=f"the same in a pool of {_SMALL_POOL:,} pages",
        limit=1.1,
    )
