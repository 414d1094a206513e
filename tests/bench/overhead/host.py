# SPDX-License-Identifier: Apache-2.0
"""SGLang's own host pool, of pages with a known size."""

from dataclasses import dataclass
from typing import Any

# Brings SGLang up on this machine, so it comes before SGLang.
from kvstrata_host.rank import bring_up

# isort: split
import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

LAYOUT = "page_first"
PAGE_TOKENS = 64
_LAYERS, _HEADS = 4, 4
_PARTS = 2


@dataclass(frozen=True)
class HostMemory:
    """A host pool and the token indices of its pages."""

    pool: Any
    page_bytes: int

    def indices(self, first: int, count: int) -> torch.Tensor:
        """Token indices of `count` pages from page `first` on; shape [count * PAGE_TOKENS]."""
        return torch.arange(first * PAGE_TOKENS, (first + count) * PAGE_TOKENS)

    def page_contents(self, first: int, count: int) -> torch.Tensor:
        """A copy of the pages, one row each."""
        data = [
            self.pool.get_data_page(page * PAGE_TOKENS, flat=True)
            for page in range(first, first + count)
        ]
        return torch.stack([each.clone() for each in data])


def host_memory(page_bytes: int, pages: int) -> HostMemory:
    """A host pool of at least `pages` pages of `page_bytes`, with random contents."""
    bring_up()
    head_dim = page_bytes // (_PARTS * PAGE_TOKENS * _LAYERS * _HEADS * 4)
    device = MHATokenToKVPool(
        pages * PAGE_TOKENS,
        PAGE_TOKENS,
        torch.float32,
        _HEADS,
        head_dim,
        _LAYERS,
        "cpu",
        enable_memory_saver=False,
    )
    pool = MHATokenToKVPoolHost(device, 1.0, 0, PAGE_TOKENS, LAYOUT, pin_memory=True)
    pool.kv_buffer.normal_()
    return HostMemory(pool, page_bytes)
