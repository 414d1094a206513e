# SPDX-License-Identifier: Apache-2.0
"""SGLang's sliding-window allocator over managed pools.

Its full and its sliding-window ids are leased together before either allocator takes some, and the
mapping from one to the other is written afterwards.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from sglang.srt.managers.scheduler_components.pool_stats_observer import (
    PoolStats,
    SchedulerPoolStatsObserver,
)
from sglang.srt.mem_cache.allocator import swa as sglang_swa
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
from sglang.srt.mem_cache.memory_pool import KVCache

from .allocator import (
    LeasedPagedAllocator,
    Want,
    allocate,
    counting_ids_alone,
    decoding,
    extending,
    new_pages,
)
from .discovery import managed_pools_of, swa_allocator_of
from .transaction import IdSpace

Tokens = torch.Tensor | None


def build(
    original: Callable[..., None],
    allocator: SWATokenToKVPoolAllocator,
    *args: object,
    **kwargs: object,
) -> None:
    """Make the allocator; a DeepSeek-V4 pool gets SGLang's ids, with leases if it is managed."""
    given = inspect.signature(SWATokenToKVPoolAllocator.__init__).bind(allocator, *args, **kwargs)
    kvcache = given.arguments["kvcache"]
    if not isinstance(kvcache, DeepSeekV4TokenToKVPool):
        original(allocator, *args, **kwargs)
        return
    with _page_allocators_of(kvcache):
        original(allocator, *args, **kwargs)


def alloc_extend(
    original: Callable[..., Tokens],
    allocator: SWATokenToKVPoolAllocator,
    prefix_lens: torch.Tensor,
    prefix_lens_cpu: torch.Tensor,
    seq_lens: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
    last_loc: torch.Tensor,
    extend_num_tokens: int,
) -> Tokens:
    """Extend requests; None, with nothing changed, where ids or memory are missing."""
    given = (prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens)
    native = partial(original, allocator, *given)
    sides = _sides(allocator)
    if sides is None:
        return native()
    count = new_pages(sides[0], seq_lens_cpu, prefix_lens_cpu)
    wants = {side: extending(side, count, extend_num_tokens, prefix_lens) for side in sides}
    return allocate(wants, native)


def alloc_extend_swa_tail(
    original: Callable[..., Tokens],
    allocator: SWATokenToKVPoolAllocator,
    prefix_lens: torch.Tensor,
    prefix_lens_cpu: torch.Tensor,
    seq_lens: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
    last_loc: torch.Tensor,
    extend_num_tokens: int,
    swa_tail_len: int,
) -> Tokens:
    """Extend a request of which only the tail has a sliding window."""
    given = (prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens)
    native = partial(original, allocator, *given, swa_tail_len)
    sides = _sides(allocator)
    if sides is None:
        return native()
    full, swa = sides
    count = new_pages(full, seq_lens_cpu, prefix_lens_cpu)
    wants = {full: extending(full, count, extend_num_tokens, prefix_lens)}
    if swa_tail_len:
        tail_count = -(-swa_tail_len // swa.page_size)
        wants[swa] = extending(swa, tail_count, swa_tail_len, prefix_lens)
    else:
        wants[swa] = Want(pages=0, reach=0)
    return allocate(wants, native)


def alloc_decode(
    original: Callable[..., Tokens],
    allocator: SWATokenToKVPoolAllocator,
    seq_lens: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
    last_loc: torch.Tensor,
) -> Tokens:
    """Add one token to each request; SGLang itself would keep one side where the other misses."""
    native = partial(original, allocator, seq_lens, seq_lens_cpu, last_loc)
    sides = _sides(allocator)
    if sides is None:
        return native()
    return allocate({side: decoding(side, seq_lens_cpu) for side in sides}, native)


def available_size(
    original: Callable[[SWATokenToKVPoolAllocator], int], allocator: SWATokenToKVPoolAllocator
) -> int:
    """What the next tokens of running requests may take, also while a limit is not yet met."""
    sides = _sides(allocator)
    return original(allocator) if sides is None else min(side.obtainable_size for side in sides)


def count_tokens(
    original: Callable[[SchedulerPoolStatsObserver], PoolStats],
    observer: SchedulerPoolStatsObserver,
) -> PoolStats:
    """Count ids, not memory: what a limit holds back is not in use and was not lost."""
    allocator = swa_allocator_of(observer.token_to_kv_pool_allocator)
    sides = None if allocator is None else _sides(allocator)
    if sides is None:
        return original(observer)
    with counting_ids_alone(sides):
        return original(observer)


def _sides(
    allocator: SWATokenToKVPoolAllocator,
) -> tuple[LeasedPagedAllocator, LeasedPagedAllocator] | None:
    full, swa = allocator.full_attn_allocator, allocator.swa_attn_allocator
    if isinstance(full, LeasedPagedAllocator) and isinstance(swa, LeasedPagedAllocator):
        return full, swa
    return None


@contextmanager
def _page_allocators_of(kvcache: DeepSeekV4TokenToKVPool) -> Iterator[None]:
    """Let SGLang's module make the page allocators that belong to `kvcache`.

    kvcached's autopatch puts its elastic allocators there, which need an elastic pool.
    """
    pools = managed_pools_of(kvcache)

    def make(
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str,
        part: KVCache | None,
        need_sort: bool,  # noqa: FBT001 - SGLang's signature
    ) -> PagedTokenToKVPoolAllocator:
        given = (size, page_size, dtype, device, part, need_sort)
        if pools is None:
            return PagedTokenToKVPoolAllocator(*given)
        is_swa = part is not None and part is kvcache.swa_kv_pool
        space = IdSpace.SWA if is_swa else IdSpace.FULL
        return LeasedPagedAllocator(*given, pools=pools, space=space)

    before = vars(sglang_swa)["PagedTokenToKVPoolAllocator"]
    vars(sglang_swa)["PagedTokenToKVPoolAllocator"] = make
    try:
        yield
    finally:
        vars(sglang_swa)["PagedTokenToKVPoolAllocator"] = before
