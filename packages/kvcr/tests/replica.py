# SPDX-License-Identifier: Apache-2.0
"""SGLang's own pools and controller in this process, on a CPU."""

import os
import tempfile
import threading
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("SGLANG_PLATFORM", "kvstrata_host")
os.environ.setdefault("TRITON_INTERPRET", "1")

# What SGLang's imports warn about is not under test here.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist
    from sglang.srt.distributed.parallel_state import (
        init_distributed_environment,
        initialize_model_parallel,
    )
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_pool_entry
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host import HostPoolGroup
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.mem_cache.utils import get_storage_hash_str
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import get_context

PAGE_TOKENS = 4
DEVICE_TOKENS = 64
LAYERS = 3
LAYOUTS = (("page_first", "kernel"), ("page_first_direct", "direct"))


@cache
def bring_up() -> None:
    """Load SGLang's plugins and make a process group of this process alone, once."""
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
    """A device pool and its host pool of twice the size."""
    bring_up()
    if kind == "mha":
        device = MHATokenToKVPool(
            DEVICE_TOKENS, PAGE_TOKENS, torch.float32, 2, 8, LAYERS, "cpu", False
        )
        return device, MHATokenToKVPoolHost(device, 2.0, 0, PAGE_TOKENS, layout, pin_memory=False)
    device = MLATokenToKVPool(
        DEVICE_TOKENS, PAGE_TOKENS, torch.bfloat16, 16, 8, LAYERS, "cpu", False
    )
    return device, MLATokenToKVPoolHost(device, 2.0, 0, PAGE_TOKENS, layout, pin_memory=False)


@dataclass
class Replica:
    """A HiCache controller with its pools, as one rank of a server has them."""

    kind: str
    layout: str
    io_backend: str
    settings: dict[str, object] = field(default_factory=dict)
    backend: str | None = "kvcr"

    def __post_init__(self) -> None:
        self.device_pool, self.host_pool = make_pools(self.kind, self.layout)
        self.allocator = PagedTokenToKVPoolAllocator(
            DEVICE_TOKENS, PAGE_TOKENS, self.device_pool.dtype, "cpu", self.device_pool, False
        )
        entry = build_pool_entry(
            name=PoolName.KV,
            host_pool=self.host_pool,
            device_pool=self.device_pool,
            layer_mapping={layer: layer for layer in range(LAYERS)},
            transfer_layer_num=LAYERS,
            is_anchor=True,
        )
        self.controller = HybridCacheController(
            self.allocator,
            HostPoolGroup([entry]),
            PAGE_TOKENS,
            dist.group.WORLD,
            threading.Event(),
            write_policy="write_through",
            io_backend=self.io_backend,
            storage_backend=self.backend,
            prefetch_threshold=PAGE_TOKENS,
            model_name="tiny",
            storage_backend_extra_config=dict(self.settings),
        )

    @property
    def store(self) -> Any:
        return self.controller.storage_backend

    def buffers(self) -> list[torch.Tensor]:
        pool = self.device_pool
        buffers: list[torch.Tensor] = (
            pool.k_buffer + pool.v_buffer if hasattr(pool, "k_buffer") else pool.kv_buffer
        )
        return buffers

    def back_up(self, tokens: list[int]) -> list[torch.Tensor]:
        """Put random KV of tokens on the device, and from there into storage; returns the KV."""
        controller, indices = self.controller, self.allocator.alloc(len(tokens))
        for buffer in self.buffers():
            buffer[indices] = torch.randn(buffer[indices].shape).to(buffer.dtype)
        written = [buffer[indices].clone() for buffer in self.buffers()]
        host_indices = controller.write(indices)
        controller.ack_write_queue.pop(0).finish_event.synchronize()
        controller.write_storage(host_indices, tokens, hashes_of(tokens))
        operation = controller.ack_backup_queue.get(timeout=20)
        assert operation.completed_tokens == len(tokens)
        controller.evict_host(host_indices)
        self.allocator.free(indices)
        self.forget()
        return written

    def forget(self) -> None:
        """Wipe what device and host memory hold."""
        for buffer in self.buffers():
            buffer.zero_()
        self.host_pool.kv_buffer.zero_()

    def restore(self, tokens: list[int]) -> tuple[int, list[torch.Tensor]]:
        """Prefetch tokens from storage and load them; the number restored and their KV."""
        controller = self.controller
        controller.prefetch(CacheRequestHandle("request", 0), tokens)
        hit = controller.prefetch_hit_queue.get(timeout=20)
        if hit.storage_hit_count == 0:
            return 0, []
        hit.host_indices = self.host_pool.alloc(hit.storage_hit_count)
        controller.prefetch_buffer.put(hit)
        completed = 0
        while True:
            ack = controller.ack_prefetch_queue.get(timeout=20)
            if ack.completed_tokens is not None:
                completed = ack.completed_tokens
            if ack.completed_req:
                break
        if completed == 0:
            return 0, []
        indices = controller.load(hit.host_indices[:completed])
        controller.start_loading()
        controller.ack_load_queue.pop(0).finish_event.synchronize()
        return completed, [buffer[indices].clone() for buffer in self.buffers()]

    def close(self) -> None:
        if self.controller.enable_storage:
            self.controller.detach_storage_backend()


def hashes_of(tokens: list[int]) -> list[str]:
    """SGLang's page hashes of a prompt."""
    hashes = get_storage_hash_str(tokens, None, page_size=PAGE_TOKENS)
    assert isinstance(hashes, list)
    return hashes
