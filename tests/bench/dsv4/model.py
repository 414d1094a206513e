# SPDX-License-Identifier: Apache-2.0
"""SGLang's pools and allocator of DeepSeek-V4, managed or native, without their kernels."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvstrata_host.dsv4 import PAGE_TOKENS, make_device_pool

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    from kvstrata.exact_id import ManagedPools

LAYERS = (0, 0, *((4, 128) * 15))
"""Compression ratios of 32 layers, in the order of the released models."""
FEW_LAYERS = (0, 4, 128, 4)
"""For what does not depend on the number of layers."""


class ModelError(RuntimeError):
    """The pools are not what they were to be, or an allocation missed."""


@dataclass(frozen=True)
class Model:
    """Pages of the full ids and of the sliding window, and what hands them out."""

    full_pages: int
    swa_pages: int
    allocator: "SWATokenToKVPoolAllocator"
    pools: "ManagedPools | None"

    def start(self, page_count: int) -> "torch.Tensor":
        """The tokens of a new request of whole pages."""
        import torch

        none = torch.zeros(1, dtype=torch.int64)
        count = page_count * PAGE_TOKENS
        length = torch.tensor([count])
        last = torch.tensor([-1])
        tokens: torch.Tensor | None = self.allocator.alloc_extend(
            none, none, length, length, last, count
        )
        if tokens is None:
            raise ModelError(f"{page_count} pages could not be had")
        return tokens

    def end(self, tokens: "torch.Tensor") -> None:
        """Give a request back, in a group of its own as SGLang does after a batch."""
        self.allocator.free_group_begin()
        self.allocator.free_segment(tokens, start_pos=0)
        self.allocator.free_group_end()

    @property
    def managed(self) -> "ManagedPools":
        if self.pools is None:
            raise ModelError("the pools are SGLang's own; the log says why")
        return self.pools


def prepare() -> None:
    """Settings that are read when kvcached and SGLang are imported; every slice in place."""
    os.environ.update(
        ENABLE_KVCACHED="1",
        KVCACHED_CONTIGUOUS_LAYOUT="false",
        KVCACHED_LOG_LEVEL="ERROR",
        KVCACHED_IPC_NAME=f"kvstrata-bench-{os.getpid()}",
    )
    import torch
    from sglang.srt.runtime_context import get_context

    from kvstrata.c4_kv import plugin as c4_kv
    from kvstrata.exact_id import plugin as exact_id
    from kvstrata.packed_indexer import plugin as packed_indexer

    for plugin in (exact_id, c4_kv, packed_indexer):
        plugin.load()
    get_context().override_server_args().install()
    # Threads that wait for one another on a busy machine would be most of what is measured.
    torch.set_num_threads(1)
    _use_torch_for_kernels()


def make_model(
    full_pages: int,
    swa_pages: int | None = None,
    *,
    managed: bool = True,
    layers: Sequence[int] = LAYERS,
) -> Model:
    """Make pools on the device `cpu`; as many sliding-window pages as full ones by default."""
    import torch
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    from kvstrata.exact_id.discovery import managed_pools_of

    swa_pages = swa_pages or full_pages
    full_tokens, swa_tokens = full_pages * PAGE_TOKENS, swa_pages * PAGE_TOKENS
    os.environ["ENABLE_KVCACHED"] = "1" if managed else "0"
    pool = make_device_pool(full_tokens, swa_tokens, layers)
    allocator = SWATokenToKVPoolAllocator(
        full_tokens, swa_tokens, PAGE_TOKENS, torch.float8_e4m3fn, "cpu", pool, need_sort=False
    )
    return Model(full_pages, swa_pages, allocator, managed_pools_of(pool))


def _use_torch_for_kernels() -> None:
    """Triton interprets its kernels here, in tens of milliseconds; SGLang has one in torch too."""
    from sglang.srt.mem_cache.allocator import paged

    class Launch:
        def __getitem__(self, grid: tuple[int, ...]) -> "Callable[..., None]":
            return _extend

    vars(paged)["alloc_extend_kernel"] = Launch()


def _extend(
    prefix_lens: "torch.Tensor",
    seq_lens: "torch.Tensor",
    last_loc: "torch.Tensor",
    free_pages: "torch.Tensor",
    out_indices: "torch.Tensor",
    _: int,
    page_size: int,
) -> None:
    from sglang.srt.mem_cache.allocator.paged import alloc_extend_naive

    alloc_extend_naive(
        prefix_lens, seq_lens, last_loc, free_pages, out_indices, page_size, out_indices.device
    )
