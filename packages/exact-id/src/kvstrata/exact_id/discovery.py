# SPDX-License-Identifier: Apache-2.0
"""Finding the managed pools of a running model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .ownership import Ownership
from .transaction import ManagedPools

if TYPE_CHECKING:
    from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import KVCache

_POOLS = "kvstrata_exact_id_pools"
_OWNERS = "kvstrata_exact_id_owners"


def attach(kvcache: "KVCache", owners: Sequence[Ownership], pools: ManagedPools | None) -> None:
    """Remember who owns the pools of `kvcache`, and those of them that are managed."""
    setattr(kvcache, _OWNERS, tuple(owners))
    setattr(kvcache, _POOLS, pools)


def owners_of(kvcache: "KVCache") -> Sequence[Ownership]:
    """Who owns each pool of a DeepSeek-V4 pool, and why; empty with ENABLE_KVCACHED off."""
    owners: tuple[Ownership, ...] = getattr(kvcache, _OWNERS, ())
    return owners


def managed_pools_of(kvcache: "KVCache") -> ManagedPools | None:
    """The managed pools of a DeepSeek-V4 pool; None where everything is native."""
    pools: ManagedPools | None = getattr(kvcache, _POOLS, None)
    return pools


def selected_pools_of(kvcache: "KVCache", name: str) -> ManagedPools | None:
    """The managed pools of `kvcache` if `name` is one of them, made or not; else None."""
    pools = managed_pools_of(kvcache)
    return pools if pools is not None and name in pools.barrier.states else None


def swa_allocator_of(
    allocator: "BaseTokenToKVPoolAllocator",
) -> "SWATokenToKVPoolAllocator | None":
    """The sliding-window allocator, which HiSparse keeps behind a wrapper; None without one."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    seen: object = getattr(allocator, "logical_attn_allocator", allocator)
    return seen if isinstance(seen, SWATokenToKVPoolAllocator) else None


def managed_pools_behind(allocator: "BaseTokenToKVPoolAllocator") -> ManagedPools | None:
    """The managed pools that follow the ids of `allocator`; None where everything is native."""
    found = swa_allocator_of(allocator)
    return None if found is None else managed_pools_of(found.get_kvcache())
