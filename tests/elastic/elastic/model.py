# SPDX-License-Identifier: Apache-2.0
"""SGLang's own DeepSeek-V4 pool and allocator in this process, with a managed window pool.

`prepare` comes before anything that imports SGLang, Triton or kvcached.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstrata.exact_id.discovery import managed_pools_of
from kvstrata.exact_id.ownership import SWA
from kvstrata.exact_id.pool import ManagedPool
from kvstrata_host.dsv4 import PAGE_TOKENS, make_device_pool

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

WINDOW_TOKENS = 128


class ModelError(RuntimeError):
    """The pool was not made as it was to be."""


@dataclass(frozen=True)
class Size:
    """Pages of the full and of the sliding-window ids, and the layers' compression ratios."""

    full_pages: int = 4096
    swa_pages: int = 256
    compression_ratios: tuple[int, ...] = (0, 4, 128, 4)


@dataclass(frozen=True)
class Model:
    """The allocator, the managed pool, and the rows of each layer as bytes."""

    size: Size
    allocator: "SWATokenToKVPoolAllocator"
    managed: ManagedPool
    rows: "list[torch.Tensor]"

    @property
    def live_pages(self) -> int:
        """How many sliding-window pages SGLang has handed out."""
        free = self.allocator.swa_attn_allocator.get_all_free_pages()
        return self.size.swa_pages - int(free.numel())


def prepare() -> None:
    """Settings that are read when kvcached, Triton and SGLang are imported; hooks in place."""
    os.environ.update(
        ENABLE_KVCACHED="1",
        KVCACHED_CONTIGUOUS_LAYOUT="false",
        KVCACHED_LOG_LEVEL="ERROR",
        KVCACHED_IPC_NAME=f"kvstrata-elastic-{os.getpid()}",
        TRITON_INTERPRET="1",
    )
    from kvstrata.exact_id import plugin

    plugin.load()


def make_model(size: Size) -> Model:
    """Make the pool, one rank of one stage, on the device `cpu`."""
    import torch
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.runtime_context import get_context

    get_context().override_server_args().install()
    full_tokens = size.full_pages * PAGE_TOKENS
    swa_tokens = size.swa_pages * PAGE_TOKENS
    pool = make_device_pool(full_tokens, swa_tokens, size.compression_ratios)
    allocator = SWATokenToKVPoolAllocator(
        full_tokens, swa_tokens, PAGE_TOKENS, torch.float8_e4m3fn, "cpu", pool, need_sort=False
    )
    rows = [layer.view(torch.uint8) for layer in pool.swa_kv_pool.kv_buffer]
    return Model(size, allocator, _managed(pool), rows)


def _managed(pool: "DeepSeekV4TokenToKVPool") -> ManagedPool:
    pools = managed_pools_of(pool)
    if pools is None:
        raise ModelError("the sliding-window pool is SGLang's own; the log says why")
    return pools[SWA]
