# SPDX-License-Identifier: Apache-2.0
"""SGLang's own DeepSeek-V4 pool and allocator in this process, with three managed pools.

`prepare` comes before anything that imports SGLang, Triton or kvcached.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstrata.exact_id.discovery import managed_pools_of
from kvstrata.exact_id.ownership import C4, INDEXER, SWA
from kvstrata.exact_id.transaction import IdSpace, ManagedPools
from kvstrata_host.dsv4 import PAGE_TOKENS, make_device_pool

from .footprint import Footprint

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

WINDOW_TOKENS = 128
SPACES: Mapping[str, IdSpace] = {SWA: IdSpace.SWA, C4: IdSpace.FULL, INDEXER: IdSpace.FULL}
"""The managed pools, and whose page ids each follows."""
COMPRESSED = (C4, INDEXER)


class ModelError(RuntimeError):
    """The pools were not made as they were to be."""


@dataclass(frozen=True)
class Size:
    """Pages of the full and of the sliding-window ids, and the layers' compression ratios."""

    full_pages: int = 2560
    swa_pages: int = 256
    compression_ratios: tuple[int, ...] = (0, 4, 128, 4)


@dataclass(frozen=True)
class Model:
    """The pool with its allocator, its managed parts, and of each the rows of a layer as bytes."""

    size: Size
    kvcache: "DeepSeekV4TokenToKVPool"
    allocator: "SWATokenToKVPoolAllocator"
    pools: ManagedPools
    rows: "Mapping[str, list[torch.Tensor]]"

    @property
    def mapped_bytes(self) -> int:
        """Physical memory of all managed pools."""
        return sum(pool.mapped_bytes for pool in self.pools)

    def live_pages(self, name: str) -> int:
        """How many pages of the pool SGLang has handed out."""
        allocator, size = self.allocator, self.size
        if SPACES[name] is IdSpace.SWA:
            side, pages = allocator.swa_attn_allocator, size.swa_pages
        else:
            side, pages = allocator.full_attn_allocator, size.full_pages
        return pages - int(side.get_all_free_pages().numel())

    def footprint(self, name: str) -> Footprint:
        geometry = self.pools[name].geometry
        return Footprint(geometry.page_bytes, geometry.vmm_page_bytes, geometry.layer_count)

    def picture(self) -> tuple[object, ...]:
        """All that a miss may not change.

        The free ids of both sides in their order, the mapping from full to sliding-window tokens,
        and of each managed pool the leased ids, the holders and the mapped VMM pages.
        """
        allocator = self.allocator
        return (
            allocator.full_attn_allocator.get_all_free_pages().tolist(),
            allocator.swa_attn_allocator.get_all_free_pages().tolist(),
            allocator.full_to_swa_index_mapping.numpy().tobytes(),
            *(
                (
                    pool.ledger.leased_ids.tolist(),
                    pool.ledger.holders(pool.name),
                    pool.backing.mapped_pages.tolist(),
                )
                for pool in self.pools
            ),
        )


def prepare() -> None:
    """Settings that are read when kvcached, Triton and SGLang are imported; hooks in place."""
    os.environ.update(
        ENABLE_KVCACHED="1",
        KVCACHED_CONTIGUOUS_LAYOUT="false",
        KVCACHED_LOG_LEVEL="ERROR",
        KVCACHED_IPC_NAME=f"kvstrata-elastic-{os.getpid()}",
        TRITON_INTERPRET="1",
    )
    from kvstrata.c4_kv import plugin as c4_kv
    from kvstrata.exact_id import plugin as exact_id
    from kvstrata.packed_indexer import plugin as packed_indexer

    for plugin in (exact_id, c4_kv, packed_indexer):
        plugin.load()


def make_model(size: Size) -> Model:
    """Make the pools, one rank of one stage, on the device `cpu`."""
    import torch
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.runtime_context import get_context

    get_context().override_server_args().install()
    full_tokens = size.full_pages * PAGE_TOKENS
    swa_tokens = size.swa_pages * PAGE_TOKENS
    kvcache = make_device_pool(full_tokens, swa_tokens, size.compression_ratios)
    allocator = SWATokenToKVPoolAllocator(
        full_tokens, swa_tokens, PAGE_TOKENS, torch.float8_e4m3fn, "cpu", kvcache, need_sort=False
    )
    buffers = {
        SWA: kvcache.swa_kv_pool.kv_buffer,
        C4: kvcache.c4_kv_pool.kv_buffer,
        INDEXER: kvcache.c4_indexer_kv_pool.index_k_with_scale_buffer,
    }
    rows = {name: [each.view(torch.uint8) for each in layers] for name, layers in buffers.items()}
    return Model(size, kvcache, allocator, _managed(kvcache), rows)


def _managed(kvcache: "DeepSeekV4TokenToKVPool") -> ManagedPools:
    pools = managed_pools_of(kvcache)
    names = [pool.name for pool in pools or ()]
    if pools is None or names != [*SPACES]:
        wanted = ", ".join(SPACES)
        raise ModelError(f"managed is {', '.join(names) or 'nothing'}, not {wanted}: see the log")
    return pools
