# SPDX-License-Identifier: Apache-2.0
"""SGLang's own pools and HiCache controller in this process, over the `file` backend."""

from __future__ import annotations

import os
import tempfile
import threading
import warnings
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("TRITON_INTERPRET", "1")
_PLATFORM = {"SGLANG_PLATFORM": "kvstrata_host", "SGLANG_PLUGINS": "kvstrata_host"}

# What SGLang's imports warn about is not under test here.
with patch.dict(os.environ, _PLATFORM), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist
    from sglang.srt.distributed.parallel_state import (
        init_distributed_environment,
        initialize_model_parallel,
    )
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import (
        DSATokenToKVPool,
        MHATokenToKVPool,
        MLATokenToKVPool,
    )
    from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.mem_cache.utils import get_storage_hash_str
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import get_context

PAGE_TOKENS = 4
DEVICE_TOKENS = 64
LAYERS = 3


@cache
def bring_up() -> None:
    """Load SGLang's plugins and make a process group of this process alone, once."""
    with patch.dict(os.environ, _PLATFORM):
        load_plugins()
    get_context().override_server_args().install()
    rendezvous = Path(tempfile.mkdtemp()) / "group"
    init_distributed_environment(
        world_size=1,
        rank=0,
        local_rank=0,
        backend="gloo",
        distributed_init_method=f"file://{rendezvous}",
    )
    initialize_model_parallel()


def make_pools(kind: str, layout: str) -> tuple[Any, Any]:
    """A device pool and a host pool of twice its size; the host pool asks for pinned memory."""
    bring_up()
    if kind == "mha":
        device = MHATokenToKVPool(
            DEVICE_TOKENS, PAGE_TOKENS, torch.float32, 2, 8, LAYERS, "cpu", False
        )
        return device, MHATokenToKVPoolHost(device, 2.0, 0, PAGE_TOKENS, layout, pin_memory=True)
    device = MLATokenToKVPool(
        DEVICE_TOKENS, PAGE_TOKENS, torch.bfloat16, 16, 8, LAYERS, "cpu", False
    )
    return device, MLATokenToKVPoolHost(device, 2.0, 0, PAGE_TOKENS, layout, pin_memory=True)


def make_indexer(layout: str) -> tuple[Any, Any]:
    """A DSA device pool and the host pool of its indexer."""
    bring_up()
    device = DSATokenToKVPool(
        DEVICE_TOKENS,
        page_size=64,
        kv_lora_rank=512,
        dtype=torch.bfloat16,
        qk_rope_head_dim=64,
        layer_num=LAYERS,
        device="cpu",
        index_head_dim=128,
        enable_memory_saver=False,
        kv_cache_dim=576,
    )
    anchor = MLATokenToKVPoolHost(device, 2.0, 0, 64, layout, pin_memory=True)
    return device, DSAIndexerPoolHost(device, anchor, layout, pin_memory=True)


class Tier:
    """A HiCache controller with its pools, as the one rank of a server has them."""

    def __init__(self, kind: str, layout: str, io_backend: str, store: Path) -> None:
        self.device_pool, self.host_pool = make_pools(kind, layout)
        self.allocator = PagedTokenToKVPoolAllocator(
            DEVICE_TOKENS, PAGE_TOKENS, self.device_pool.dtype, "cpu", self.device_pool, False
        )
        with patch.dict(os.environ, SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=str(store)):
            self.controller = HiCacheController(
                self.allocator,
                self.host_pool,
                PAGE_TOKENS,
                dist.group.WORLD,
                threading.Event(),
                write_policy="write_through",
                io_backend=io_backend,
                storage_backend="file",
                prefetch_threshold=PAGE_TOKENS,
                model_name="tiny",
            )

    def buffers(self) -> list[torch.Tensor]:
        pool = self.device_pool
        buffers: list[torch.Tensor] = (
            pool.k_buffer + pool.v_buffer if hasattr(pool, "k_buffer") else pool.kv_buffer
        )
        return buffers

    def back_up(self, tokens: list[int]) -> list[torch.Tensor]:
        """Random KV of tokens, from the device into storage and nowhere else; returns the KV."""
        controller, indices = self.controller, self.allocator.alloc(len(tokens))
        for buffer in self.buffers():
            buffer[indices] = torch.randn(buffer[indices].shape).to(buffer.dtype)
        written = [buffer[indices].clone() for buffer in self.buffers()]
        host_indices = controller.write(indices)
        controller.ack_write_queue.pop(0).finish_event.synchronize()
        hashes = get_storage_hash_str(tokens, None, page_size=PAGE_TOKENS)
        controller.write_storage(host_indices, tokens, hashes)
        assert controller.ack_backup_queue.get(timeout=20).completed_tokens == len(tokens)
        controller.evict_host(host_indices)
        self.allocator.free(indices)
        self.host_pool.kv_buffer.zero_()
        for buffer in self.buffers():
            buffer.zero_()
        return written

    def restore(self, tokens: list[int]) -> list[torch.Tensor]:
        """Prefetch all of the tokens from storage and load them to the device; returns their KV."""
        controller = self.controller
        controller.prefetch("request", tokens)
        hit = controller.prefetch_hit_queue.get(timeout=20)
        assert hit.storage_hit_count == len(tokens)
        hit.host_indices = self.host_pool.alloc(hit.storage_hit_count)
        controller.prefetch_buffer.put(hit)
        while not (ack := controller.ack_prefetch_queue.get(timeout=20)).completed_req:
            pass
        assert ack.completed_req
        indices = controller.load(hit.host_indices)
        controller.start_loading()
        controller.ack_load_queue.pop(0).finish_event.synchronize()
        return [buffer[indices].clone() for buffer in self.buffers()]

    def close(self) -> None:
        self.controller.detach_storage_backend()
