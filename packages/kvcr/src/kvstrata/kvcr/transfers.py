# SPDX-License-Identifier: Apache-2.0
"""The page IO of one storage operation: what the store says is checked, and every step answers.

All ranks emit the same acknowledgements for an operation, whatever fails on one of them, because
each acknowledgement is reduced over the ranks: one for every 128 pages, one for the pools beside
KV if there are any, and SGLang's own at the end.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from sglang.srt.managers.cache_controller import PrefetchAck
from sglang.srt.mem_cache.hicache_storage import STORAGE_BATCH_SIZE, PoolName, PoolTransfer

from .hints import carrying, operation_hint

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import (
        HybridCacheController,
        PrefetchOperation,
        StorageOperation,
    )

logger = logging.getLogger(__name__)


def successes(results: object, expected: int, pool: str) -> list[bool]:
    """Whether each page of a pool succeeded; all failed unless there is one bool for each page."""
    if (
        isinstance(results, (list, tuple))
        and len(results) == expected
        and all(type(each) is bool for each in results)
    ):
        return list(results)
    logger.error("kvcr result of pool %s is not %d bools, taken for a miss", pool, expected)
    return [False] * expected


def leading(results: list[bool]) -> int:
    """How many pages succeeded before the first that did not."""
    return next((i for i, succeeded in enumerate(results) if not succeeded), len(results))


def read(controller: "HybridCacheController", operation: "PrefetchOperation") -> None:
    """Fill an operation's host pages and emit its acknowledgements but the last; never raises."""
    completed, whole = 0, True
    with carrying(operation_hint(operation, controller.storage_backend)):
        for hashes, host_indices in _batches(controller, operation):
            if whole and not operation.is_terminated():
                pages = _read_batch(controller, operation, hashes, host_indices)
                completed += pages
                whole = pages == len(hashes)
            else:
                whole = False
            controller.prefetch_sync_queue.put(
                PrefetchAck(
                    rid=operation.request_id,
                    operation=operation,
                    completed_tokens=completed * controller.page_size,
                )
            )
        if operation.pool_transfers:
            hits: dict[str, int] = {}
            if whole and not operation.is_terminated():
                hits = _read_other_pools(controller, operation, completed)
            controller.prefetch_sync_queue.put(
                PrefetchAck(rid=operation.request_id, operation=operation, pool_hits=hits)
            )
    if operation.is_terminated():
        used = operation.completed_tokens // controller.page_size
        controller.storage_backend.discards.note(restored_pages=completed, used_pages=used)


def back_up(controller: "HybridCacheController", operation: "StorageOperation") -> None:
    """Deposit an operation's host pages; never raises.

    ``completed_tokens`` ends before the first page of which KV or a sidecar is not held.
    """
    missing = _deposit_sidecars(controller, operation)
    held: list[bool] = []
    for hashes, host_indices in _batches(controller, operation):
        results = _deposit_batch(controller, hashes, host_indices)
        held += results
        if not all(results):
            break
    whole = [
        is_held and page not in missing
        for page, is_held in zip(operation.hash_value, held, strict=False)
    ]
    operation.completed_tokens = leading(whole) * controller.page_size


def _batches(
    controller: "HybridCacheController", operation: "StorageOperation"
) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Hashes and host indices, shape [pages * page_size], of at most 128 pages at a time."""
    for start in range(0, len(operation.hash_value), STORAGE_BATCH_SIZE):
        hashes = operation.hash_value[start : start + STORAGE_BATCH_SIZE]
        first = start * controller.page_size
        yield hashes, operation.host_indices[first : first + len(hashes) * controller.page_size]


def _read_batch(
    controller: "HybridCacheController",
    operation: "PrefetchOperation",
    hashes: list[str],
    host_indices: torch.Tensor,
) -> int:
    """How many leading pages were filled in KV and in every pool that has KV's indices."""
    store = controller.storage_backend
    try:
        kv = store.batch_get_v1(hashes, host_indices)
        pages = leading(successes(kv, len(hashes), PoolName.KV))
        sidecars = [
            PoolTransfer(
                name=transfer.name,
                keys=hashes[:pages],
                host_indices=host_indices[: pages * controller.page_size],
            )
            for transfer in operation.pool_transfers or []
            if transfer.indices_from_pool == PoolName.KV
        ]
        if sidecars and pages:
            results = store.batch_get_v2(sidecars)
            pages = min(leading(_of(results, each)) for each in sidecars)
    except Exception:  # SGLang's storage threads do not survive any exception
        logger.exception("kvcr read failed, taken for a miss")
        return 0
    return pages


def _read_other_pools(
    controller: "HybridCacheController", operation: "PrefetchOperation", completed: int
) -> dict[str, int]:
    """How many leading pages of each pool with indices of its own were filled."""
    transfers = [
        transfer
        for transfer in operation.pool_transfers
        if transfer.indices_from_pool != PoolName.KV
    ]
    try:
        # Buffer mode may have dropped KV pages that are on the device already; the other pools
        # still end where the hit ended.
        if operation.sidecar_hash_values is None:
            hashes, end = operation.hash_value, completed
        else:
            hashes, end = operation.sidecar_hash_values, operation.sidecar_hit_pages
        controller._sync_trailing_keys(transfers, hashes, end)
        controller._resolve_sidecar_nonkv_derived_pool_transfers(operation)
        results = controller.storage_backend.batch_get_v2(transfers) if transfers else {}
        return {str(each.name): leading(_of(results, each)) for each in transfers}
    except Exception:  # SGLang's storage threads do not survive any exception
        logger.exception("kvcr read of %s failed, taken for a miss", [t.name for t in transfers])
        return {}


def _deposit_sidecars(
    controller: "HybridCacheController", operation: "StorageOperation"
) -> set[str]:
    """The pages of which some sidecar is not held."""
    transfers = operation.pool_transfers
    if not transfers:
        return set()
    try:
        controller._resolve_sidecar_kv_derived_pool_transfers(operation)
        controller._resolve_sidecar_nonkv_derived_pool_transfers(operation)
        results = controller.storage_backend.batch_set_v2(transfers)
        held = {str(each.name): _of(results, each) for each in transfers}
    except Exception:  # SGLang's storage threads do not survive any exception
        logger.exception("kvcr backup of sidecars failed")
        return set(operation.hash_value)
    operation.pool_storage_result.update_extra_pool_hit_pages(
        {name: leading(each) for name, each in held.items()}
    )
    return {
        page
        for each in transfers
        for page, is_held in zip(each.keys or [], held[str(each.name)], strict=True)
        if not is_held
    }


def _deposit_batch(
    controller: "HybridCacheController", hashes: list[str], host_indices: torch.Tensor
) -> list[bool]:
    """Whether each page's KV is held."""
    try:
        results = controller.storage_backend.batch_set_v1(hashes, host_indices)
        return successes(results, len(hashes), PoolName.KV)
    except Exception:  # SGLang's storage threads do not survive any exception
        logger.exception("kvcr backup failed")
        return [False] * len(hashes)


def _of(results: dict[str, object], transfer: PoolTransfer) -> list[bool]:
    """What the store said of one pool, checked."""
    return successes(results.get(transfer.name), len(transfer.keys or []), transfer.name)
