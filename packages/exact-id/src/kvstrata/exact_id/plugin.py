# SPDX-License-Identifier: Apache-2.0
"""Entry point for SGLang: with ENABLE_KVCACHED on, DeepSeek-V4 pools may be managed."""

import os

from kvstrata.seams import Hook, Kind, Pin, Seams, apply

from . import hooks
from .gating import SWITCH, is_supported

_POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool"
_STATS = "sglang.srt.managers.scheduler_components.pool_stats_observer.SchedulerPoolStatsObserver"
_ALLOCATOR = "sglang.srt.mem_cache.allocator.swa.SWATokenToKVPoolAllocator"
_HYBRID = "sglang.srt.mem_cache.hybrid_cache"
_HICACHE = f"{_HYBRID}.hybrid_pool_assembler.build_deepseek_v4_hicache_stack"
_LINKER = f"{_HYBRID}.linker_pool_assembler._build_deepseek_v4_device_pool_group"

SEAMS = Seams(
    slice="kvstrata-exact-id",
    upstream="sglang",
    switch=f"{SWITCH}=1",
    hooks=(
        Hook(
            kind=Kind.AROUND,
            function=hooks.build_pool,
            why="Who owns the memory of a pool is decided before it is made.",
            pins={"0.5.20": Pin(f"{_POOL}.__init__", "dd131cfbe81aa2a0")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.build_kv_pool,
            why="A managed pool gets its memory while it is made, and never buffers of SGLang's.",
            pins={"0.5.20": Pin(f"{_POOL}._make_kv_pool", "8a372122a9ecaa67")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.build_allocator,
            why="DeepSeek-V4 keeps SGLang's own page ids; those of managed pools are leased.",
            pins={"0.5.20": Pin(f"{_ALLOCATOR}.__init__", "498e9ce0e46b4980")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.alloc_extend,
            why="Full and sliding-window ids are leased together, or none is taken.",
            pins={"0.5.20": Pin(f"{_ALLOCATOR}.alloc_extend", "abd05a91ed4af919")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.alloc_extend_swa_tail,
            why="Full and sliding-window ids are leased together, or none is taken.",
            pins={"0.5.20": Pin(f"{_ALLOCATOR}.alloc_extend_swa_tail", "3946c644203da614")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.alloc_decode,
            why="Full and sliding-window ids are leased together, or none is taken.",
            pins={"0.5.20": Pin(f"{_ALLOCATOR}.alloc_decode", "7fa2726acae10eb9")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.available_size,
            why="A limit that is not met yet may not end requests for which there is memory.",
            pins={"0.5.20": Pin(f"{_ALLOCATOR}.available_size", "6f68ec06989d6474")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.count_tokens,
            why="Ids that a limit holds back are free; SGLang would take them for lost, and stop.",
            pins={"0.5.20": Pin(f"{_STATS}._get_swa_token_info", "92066688106c183b")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.state_buffers,
            why="PD transfer may not read addresses without memory.",
            pins={"0.5.20": Pin(f"{_POOL}.get_state_buf_infos", "ac06126f0c7b17ea")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.build_hicache,
            why="HiCache may not copy addresses without memory.",
            pins={"0.5.20": Pin(_HICACHE, "f824eb1193c7a9e0")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.build_linker,
            why="A cache linker may not copy addresses without memory.",
            pins={"0.5.20": Pin(_LINKER, "f3435a80791045f5")},
        ),
    ),
)


def load() -> None:
    """Apply the hooks if ENABLE_KVCACHED is on and kvcached is the supported release."""
    if is_supported(os.environ):
        apply(SEAMS)
