# SPDX-License-Identifier: Apache-2.0
"""What all ranks agree on: how they read, and the longest prefix that each may resume at.

Every rank takes part for every operation, with a mask of the same length, also when it has nothing
to say: its query failed, or the operation was cancelled before. A rank that stayed away would leave
the others waiting. A collective that fails is not contained: ranks that can no longer agree must
not go on.
"""

import logging
from queue import Empty
from typing import TYPE_CHECKING

import torch
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageExtraInfo,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import PrefetchOperation
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import BASE_COMPONENT_TYPE, CacheTransferPhase
from sglang.srt.mem_cache.utils import get_storage_hash_str

from .boundaries import as_mask, longest
from .errors import ConfigError
from .hints import carrying, operation_hint

if TYPE_CHECKING:
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0


def check_alike(controller: "HiCacheController") -> None:
    """Raise ConfigError, on every rank, unless all ranks read and share pages alike.

    Comes before anything that can fail on one rank alone, which would leave the others waiting.
    """
    ways = controller.storage_backend.ways
    own = {
        "tuning.read_batch_pages": ways.read_batch_pages,
        "tuning.shared_mla": int(ways.shared_pages),
    }
    lowest_and_negated_highest = torch.tensor([*own.values(), *(-each for each in own.values())])
    controller._all_reduce(
        lowest_and_negated_highest,
        torch.distributed.ReduceOp.MIN,
        controller.prefetch_completion_sync_groups,
    )
    lowest, negated_highest = lowest_and_negated_highest.view(2, -1).tolist()
    for (setting, value), least, most in zip(own.items(), lowest, negated_highest, strict=True):
        if least != -most:
            raise ConfigError(
                setting,
                value,
                f"one value on all ranks, which have {least} to {-most}",
                "Start every node of this server with the same extra config and packages.",
            )


def answer_queries(controller: "HiCacheController") -> None:
    """The storage query thread: settles every prefetch operation, until storage stops."""
    while not controller.storage_stop_event.is_set() or not controller.prefetch_queue.empty():
        try:
            operation = controller.prefetch_queue.get(timeout=_POLL_SECONDS)
        except Empty:
            continue
        if operation is not None:  # None only wakes the thread
            settle(controller, operation)


def settle(controller: "HiCacheController", operation: PrefetchOperation) -> None:
    """Find out how much of an operation's span every rank may restore, and hand it on."""
    hashes, mask = _part(controller, operation)
    controller._all_reduce(
        mask, torch.distributed.ReduceOp.MIN, controller.prefetch_hits_sync_groups
    )
    pages = longest(mask.tolist())
    operation.all_hash_values = hashes or None
    operation.hash_value = hashes[:pages]
    operation.storage_hit_count = pages * controller.page_size
    operation.pool_storage_result = PoolTransferResult(pages, {})
    controller.prefetch_hit_queue.put(operation)


def probe(
    tree: "UnifiedRadixCache",
    node_id: int,
    tokens: list[int],
    last_hash: str | None,
    prefix_keys: list[str] | None,
    extra_key: str | None,
    cache_salt: str | None,
) -> int:
    """How many tokens after a node a prefetch of them would restore on every rank.

    Asks for the same pools as a prefetch, and neither allocates nor locks anything.
    """
    controller = tree.cache_controller
    if not tree.enable_storage or controller is None or controller.prefetch_rate_limited():
        return 0
    span = RadixKey(
        tokens, extra_key=extra_key, is_bigram=tree.tree_core.is_eagle, cache_salt=cache_salt
    ).page_aligned(controller.page_size)
    if len(span) < tree.prefetch_threshold:
        return 0
    operation = PrefetchOperation(
        CacheRequestHandle("kvcr probe", 0), span, last_hash, prefix_keys=prefix_keys
    )
    try:
        operation.pool_transfers = _pool_transfers(tree, node_id, span, last_hash)
    except Exception:  # whatever it is, the other ranks wait for this one's mask
        logger.exception("kvcr probe failed, taken for a miss")
        operation.mark_terminate()
    _, mask = _part(controller, operation)
    tree._all_reduce_attn_groups(mask, torch.distributed.ReduceOp.MIN)
    tokens_restored: int = longest(mask.tolist()) * controller.page_size
    return tokens_restored


def _part(
    controller: "HiCacheController", operation: PrefetchOperation
) -> tuple[list[str], torch.Tensor]:
    """This rank's part: the hash of each page of the span, and its mask, shape [pages + 1].

    The pages of a cancelled operation are named too: SGLang corrects by these names what it
    believes to be stored, and has to do so alike on all ranks.
    """
    page_count = len(operation.token_ids) // controller.page_size
    hashes = _page_hashes(controller, operation, page_count)
    cancelled = operation.is_terminated() or not hashes
    boundaries = [] if cancelled else _boundaries(controller, operation, hashes)
    return hashes, torch.tensor(as_mask(boundaries, page_count), dtype=torch.uint8)


def _page_hashes(
    controller: "HiCacheController", operation: PrefetchOperation, page_count: int
) -> list[str]:
    """The hash of each page of an operation's span; none if they cannot be had."""
    try:
        hashes: list[str] = get_storage_hash_str(
            operation.token_ids, operation.last_hash, page_size=controller.page_size
        )
        if len(hashes) != page_count:
            raise ValueError(f"{len(hashes)} hashes for {page_count} pages")
    except Exception:  # whatever it is, the other ranks wait for this one's mask
        logger.exception("kvcr page hashes failed, taken for a miss")
        return []
    return hashes


def _boundaries(
    controller: "HiCacheController", operation: PrefetchOperation, hashes: list[str]
) -> list[int]:
    """The prefix lengths, in pages, that this rank may resume at; none if that cannot be told."""
    if operation.assume_stored:
        # SGLang has seen this span stored and asks for all of it, on every rank.
        return [len(hashes)]
    try:
        with carrying(operation_hint(operation, controller.storage_backend)):
            found = controller.storage_backend.batch_exists_v2(
                hashes,
                operation.pool_transfers or [],
                HiCacheStorageExtraInfo(prefix_keys=operation.prefix_keys),
            )
        boundaries = found.restorable_prefix_pages
        if any(type(pages) is not int or not 0 < pages <= len(hashes) for pages in boundaries):
            raise ValueError(f"boundaries {boundaries} of a span of {len(hashes)} pages")
    except Exception:  # whatever it is, the other ranks wait for this one's mask
        logger.exception("kvcr query failed, taken for a miss")
        return []
    return list(boundaries)


def _pool_transfers(
    tree: "UnifiedRadixCache", node_id: int, span: RadixKey, last_hash: str | None
) -> list[PoolTransfer] | None:
    """What a prefetch of a span after a node would ask of the pools beside KV."""
    by_component: dict[object, list[PoolTransfer]] = {}
    for component in tree.tree_components:
        if component == BASE_COMPONENT_TYPE:
            continue
        size = tree.components[component].prepare_prefetch(node_id, prefetch_tokens=len(span))
        if size.staging_tokens == 0:
            continue
        transfers = tree.tree_core.build_hicache_transfers(
            component,
            node_id,
            CacheTransferPhase.PREFETCH,
            token_ids=span.token_ids,
            prefetch_tokens=len(span),
            staging_tokens=size.staging_tokens,
            last_hash=last_hash,
        )
        if transfers:
            by_component[component] = transfers
    sidecars = tree._build_sidecar_transfers(
        CacheTransferPhase.PREFETCH, PoolTransfer(name=PoolName.KV), by_component
    )
    return [each for transfers in by_component.values() for each in transfers] + sidecars or None
