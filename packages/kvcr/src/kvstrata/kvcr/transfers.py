# SPDX-License-Identifier: Apache-2.0
"""The page IO of one storage operation: what the store says is checked, and every step answers.

All ranks emit the same acknowledgements for an operation, whatever fails on one of them, because
each acknowledgement is reduced over the ranks: one for every read, of 128 pages unless an extension
cuts them otherwise, one for the pools beside KV if there are any, and SGLang's own at the end.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from sglang.srt.managers.cache_controller import PrefetchAck
from sglang.srt.mem_cache.hicache_storage import (
    STORAGE_BATCH_SIZE,
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
)

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
        batch_pages = controller.storage_backend.ways.read_batch_pages
        for batch in _batches(controller, operation, batch_pages):
            if whole and not operation.is_terminated():
                pages = _read_batch(controller, operation, batch)
                completed += pages
                whole = pages == len(batch.hashes)
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
    ways = controller.storage_backend.ways
    if not ways.keeps_pages:
        return
    transfers = operation.pool_transfers or []
    joined = [each for each in transfers if ways.joins_kv(each)]
    missing = _deposit_sidecars(
        controller, operation, [each for each in transfers if each not in joined]
    )
    pools = [PoolName.KV, *_names(joined)]
    held: dict[str, list[bool]] = {pool: [] for pool in pools}
    for batch in _batches(controller, operation, STORAGE_BATCH_SIZE):
        results = _deposit_batch(controller, batch, pools)
        for pool in pools:
            held[pool] += results[pool]
        if not all(map(all, results.values())):
            break
    operation.pool_storage_result.update_extra_pool_hit_pages(
        {str(pool): leading(held[pool]) for pool in pools[1:]}
    )
    whole = [
        all(is_held) and page not in missing
        for page, *is_held in zip(operation.hash_value, *held.values(), strict=False)
    ]
    operation.completed_tokens = leading(whole) * controller.page_size


@dataclass(frozen=True)
class _KvBatch:
    """Successive pages of an operation.

    Args:
        host_indices: shape [pages * page_size].
        info: what SGLang would say of them; None where it does not say which pages are before.
    """

    hashes: list[str]
    host_indices: torch.Tensor
    info: HiCacheStorageExtraInfo | None

    def of(self, name: str, page_size: int, pages: int | None = None) -> PoolTransfer:
        """The leading pages, all of them by default, in a pool that has these indices."""
        hashes = self.hashes[:pages]
        indices = self.host_indices[: len(hashes) * page_size]
        return PoolTransfer(name=name, keys=hashes, host_indices=indices)


def _batches(
    controller: "HybridCacheController", operation: "StorageOperation", most_pages: int
) -> Iterator[_KvBatch]:
    """The pages of an operation, so many at a time."""
    for start in range(0, len(operation.hash_value), most_pages):
        hashes = operation.hash_value[start : start + most_pages]
        first = start * controller.page_size
        indices = operation.host_indices[first : first + len(hashes) * controller.page_size]
        yield _KvBatch(hashes, indices, _info(operation, start))


def _info(operation: "StorageOperation", end: int | None = None) -> HiCacheStorageExtraInfo | None:
    """The pages before the operation's own and those up to `end`, by default all of them.

    None unless SGLang was told to say the prefix.
    """
    if operation.prefix_keys is None:
        return None
    # Buffer mode drops pages from an operation's head that are on the device already.
    whole = getattr(operation, "sidecar_hash_values", None) or operation.hash_value
    dropped = whole[: len(whole) - len(operation.hash_value)]
    return HiCacheStorageExtraInfo(
        prefix_keys=[*operation.prefix_keys, *dropped, *operation.hash_value[:end]]
    )


def _read_batch(
    controller: "HybridCacheController", operation: "PrefetchOperation", batch: _KvBatch
) -> int:
    """How many leading pages were filled in KV and in every pool that has KV's indices."""
    store, page_size = controller.storage_backend, controller.page_size
    sidecars = [
        each for each in operation.pool_transfers or [] if each.indices_from_pool == PoolName.KV
    ]
    try:
        joined = [each for each in sidecars if store.ways.joins_kv(each)]
        if joined:
            together = [batch.of(each, page_size) for each in (PoolName.KV, *_names(joined))]
            results = store.batch_get_v2(together, batch.info)
            pages = min(leading(_of(results, each)) for each in together)
        else:
            kv = store.batch_get_v1(batch.hashes, batch.host_indices, batch.info)
            pages = leading(successes(kv, len(batch.hashes), PoolName.KV))
        apart = [each for each in sidecars if each not in joined]
        if apart and pages:
            transfers = [batch.of(each, page_size, pages) for each in _names(apart)]
            results = store.batch_get_v2(transfers, batch.info)
            pages = min(leading(_of(results, each)) for each in transfers)
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
        results = {}
        if transfers:
            results = controller.storage_backend.batch_get_v2(transfers, _info(operation))
        return {str(each.name): leading(_of(results, each)) for each in transfers}
    except Exception:  # SGLang's storage threads do not survive any exception
        logger.exception("kvcr read of %s failed, taken for a miss", [t.name for t in transfers])
        return {}


def _deposit_sidecars(
    controller: "HybridCacheController",
    operation: "StorageOperation",
    transfers: list[PoolTransfer],
) -> set[str]:
    """The pages of which some sidecar is not held."""
    if not transfers:
        return set()
    try:
        controller._resolve_sidecar_kv_derived_pool_transfers(operation)
        controller._resolve_sidecar_nonkv_derived_pool_transfers(operation)
        results = controller.storage_backend.batch_set_v2(transfers, _info(operation))
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
    controller: "HybridCacheController", batch: _KvBatch, pools: list[str]
) -> dict[str, list[bool]]:
    """Whether each page is held, in KV and in the pools that join it."""
    store = controller.storage_backend
    try:
        if pools == [PoolName.KV]:
            kv = store.batch_set_v1(batch.hashes, batch.host_indices, batch.info)
            return {PoolName.KV: successes(kv, len(batch.hashes), PoolName.KV)}
        transfers = [batch.of(pool, controller.page_size) for pool in pools]
        results = store.batch_set_v2(transfers, batch.info)
        return {each.name: _of(results, each) for each in transfers}
    except Exception:  # SGLang's storage threads do not survive any exception
        logger.exception("kvcr backup failed")
        return {pool: [False] * len(batch.hashes) for pool in pools}


def _names(transfers: list[PoolTransfer]) -> list[str]:
    return [each.name for each in transfers]


def _of(results: dict[str, object], transfer: PoolTransfer) -> list[bool]:
    """What the store said of one pool, checked."""
    return successes(results.get(transfer.name), len(transfer.keys or []), transfer.name)
