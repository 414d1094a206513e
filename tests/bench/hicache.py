# SPDX-License-Identifier: Apache-2.0
"""SGLang's own host pool, of pages with a known size, and what it tells a storage backend."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

# Brings SGLang up on this machine, so it comes before SGLang.
from kvstrata_host.rank import bring_up

# isort: split
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host import base
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

LAYOUT = "page_first"
PAGE_TOKENS = 64
_ELEMENT_BYTES = 4
_PARTS = 2

SMALLEST_PAGE_BYTES = _PARTS * PAGE_TOKENS * _ELEMENT_BYTES


@dataclass(frozen=True)
class HostMemory:
    """A host pool and the token indices of its pages."""

    pool: Any
    page_bytes: int

    def indices(self, first: int, count: int) -> torch.Tensor:
        """Token indices of `count` pages from page `first` on; shape [count * PAGE_TOKENS]."""
        return torch.arange(first * PAGE_TOKENS, (first + count) * PAGE_TOKENS)

    def page_contents(self, first: int, count: int) -> torch.Tensor:
        """A view of the bytes of the pages; shape [2, count, bytes of K or V of a page]."""
        tokens = self.pool.kv_buffer[:, first * PAGE_TOKENS : (first + count) * PAGE_TOKENS]
        contents: torch.Tensor = tokens.view(torch.uint8).view(_PARTS, count, -1)
        return contents

    def blocks(self, first: int, count: int) -> list[tuple[int, int]]:
        """Address and size in bytes of K and of V of the pages, page by page."""
        return list(zip(*self.pool.get_page_buffer_meta(self.indices(first, count)), strict=True))


def host_memory(page_bytes: int, pages: int) -> HostMemory:
    """A host pool of at least `pages` pages of `page_bytes`, with random contents.

    Raises ValueError unless the size is a multiple of SMALLEST_PAGE_BYTES.
    """
    if page_bytes < SMALLEST_PAGE_BYTES or page_bytes % SMALLEST_PAGE_BYTES:
        raise ValueError(f"page_bytes={page_bytes} is not a multiple of {SMALLEST_PAGE_BYTES}")
    bring_up()
    device = MHATokenToKVPool(
        PAGE_TOKENS,
        PAGE_TOKENS,
        torch.float32,
        1,
        page_bytes // SMALLEST_PAGE_BYTES,
        1,
        "cpu",
        enable_memory_saver=False,
    )
    # SGLang would leave 10 GB of the machine's memory free; these pools are small.
    with mock.patch.object(base, "HICACHE_HOST_MEMORY_RESERVE_BYTES", 0):
        pool = MHATokenToKVPoolHost(device, float(pages), 0, PAGE_TOKENS, LAYOUT, pin_memory=True)
    pool.kv_buffer.normal_()
    return HostMemory(pool, page_bytes)


def storage_config(
    settings: Mapping[str, object], *, metrics: bool = False
) -> HiCacheStorageConfig:
    """What SGLang tells a storage backend of one rank; `settings` are its extra config."""
    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=metrics,
        is_page_first_layout=LAYOUT == "page_first",
        model_name="bench",
        extra_config=dict(settings),
    )


def page_hashes(name: object, count: int) -> list[str]:
    """Hexadecimal page hashes that no other name has."""
    return [hashlib.sha256(f"{name}/{page}".encode()).hexdigest() for page in range(count)]
