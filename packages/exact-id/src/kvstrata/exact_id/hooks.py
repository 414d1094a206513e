# SPDX-License-Identifier: Apache-2.0
"""What is changed in SGLang while kvcached is on: each hook is one call into this package.

The modules behind them import SGLang, which must not happen before SGLang has loaded its plugins.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .ownership import POOLS, SWA

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.scheduler_components.pool_stats_observer import (
        PoolStats,
        SchedulerPoolStatsObserver,
    )
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import (
        DeepSeekV4SingleKVPool,
        DeepSeekV4TokenToKVPool,
    )

    Tokens = torch.Tensor | None
    BufferInfos = tuple[list[int], list[int], list[int]]

_Built = TypeVar("_Built")


def build_pool(
    original: Callable[..., None],
    kvcache: "DeepSeekV4TokenToKVPool",
    *args: object,
    **kwargs: object,
) -> None:
    """AROUND the construction of a DeepSeek-V4 pool."""
    from . import construction

    construction.build(original, kvcache, *args, **kwargs)


def build_kv_pool(
    original: "Callable[..., DeepSeekV4SingleKVPool]",
    kvcache: "DeepSeekV4TokenToKVPool",
    *,
    page_size: int,
    global_page_size: int,
    cls: "type[DeepSeekV4SingleKVPool]",
    **kwargs: object,
) -> "DeepSeekV4SingleKVPool":
    """AROUND the construction of its sliding-window, C4 and C128 parts."""
    from . import construction

    return construction.build_kv_pool(
        original,
        kvcache,
        page_size=page_size,
        global_page_size=global_page_size,
        cls=cls,
        **kwargs,
    )


def build_allocator(
    original: Callable[..., None],
    allocator: "SWATokenToKVPoolAllocator",
    *args: object,
    **kwargs: object,
) -> None:
    """AROUND the construction of the sliding-window allocator."""
    from . import swa

    swa.build(original, allocator, *args, **kwargs)


def alloc_extend(
    original: "Callable[..., Tokens]",
    allocator: "SWATokenToKVPoolAllocator",
    prefix_lens: "torch.Tensor",
    prefix_lens_cpu: "torch.Tensor",
    seq_lens: "torch.Tensor",
    seq_lens_cpu: "torch.Tensor",
    last_loc: "torch.Tensor",
    extend_num_tokens: int,
) -> "Tokens":
    """AROUND the extension of requests."""
    from . import swa

    return swa.alloc_extend(
        original,
        allocator,
        prefix_lens,
        prefix_lens_cpu,
        seq_lens,
        seq_lens_cpu,
        last_loc,
        extend_num_tokens,
    )


def alloc_extend_swa_tail(
    original: "Callable[..., Tokens]",
    allocator: "SWATokenToKVPoolAllocator",
    prefix_lens: "torch.Tensor",
    prefix_lens_cpu: "torch.Tensor",
    seq_lens: "torch.Tensor",
    seq_lens_cpu: "torch.Tensor",
    last_loc: "torch.Tensor",
    extend_num_tokens: int,
    swa_tail_len: int,
) -> "Tokens":
    """AROUND the extension of a request of which only the tail has a sliding window."""
    from . import swa

    return swa.alloc_extend_swa_tail(
        original,
        allocator,
        prefix_lens,
        prefix_lens_cpu,
        seq_lens,
        seq_lens_cpu,
        last_loc,
        extend_num_tokens,
        swa_tail_len,
    )


def alloc_decode(
    original: "Callable[..., Tokens]",
    allocator: "SWATokenToKVPoolAllocator",
    seq_lens: "torch.Tensor",
    seq_lens_cpu: "torch.Tensor",
    last_loc: "torch.Tensor",
) -> "Tokens":
    """AROUND the addition of one token to each request."""
    from . import swa

    return swa.alloc_decode(original, allocator, seq_lens, seq_lens_cpu, last_loc)


def available_size(
    original: "Callable[[SWATokenToKVPoolAllocator], int]", allocator: "SWATokenToKVPoolAllocator"
) -> int:
    """AROUND what a decode may take."""
    from . import swa

    return swa.available_size(original, allocator)


def count_tokens(
    original: "Callable[[SchedulerPoolStatsObserver], PoolStats]",
    observer: "SchedulerPoolStatsObserver",
) -> "PoolStats":
    """AROUND the count of used and available tokens."""
    from . import swa

    return swa.count_tokens(original, observer)


def state_buffers(
    original: "Callable[[DeepSeekV4TokenToKVPool], BufferInfos]", kvcache: "DeepSeekV4TokenToKVPool"
) -> "BufferInfos":
    """AROUND the registration of sliding-window buffers for PD transfer."""
    from . import whole_buffers

    whole_buffers.refuse(kvcache, (SWA,), "PD transfer")
    return original(kvcache)


def build_hicache(
    original: "Callable[..., _Built]", *, kvcache: "DeepSeekV4TokenToKVPool", **kwargs: object
) -> "_Built":
    """AROUND the registration of all buffers for HiCache."""
    from . import whole_buffers

    whole_buffers.refuse(kvcache, POOLS, "HiCache")
    return original(kvcache=kvcache, **kwargs)


def build_linker(
    original: "Callable[..., _Built]",
    kvcache: "DeepSeekV4TokenToKVPool",
    *args: object,
    **kwargs: object,
) -> "_Built":
    """AROUND the registration of all buffers for a cache linker."""
    from . import whole_buffers

    whole_buffers.refuse(kvcache, POOLS, "a cache linker")
    return original(kvcache, *args, **kwargs)
