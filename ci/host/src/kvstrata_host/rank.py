# SPDX-License-Identifier: Apache-2.0
"""One rank of a server in this process: SGLang's own pools and HiCache controller, on a CPU.

For tests of storage backends that need no model and no HTTP. SGLang's plugins are loaded once per
process, all that SGLANG_PLUGINS allows.
"""

from __future__ import annotations

import os
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from kvstrata_host.plugin import PLATFORM

os.environ.setdefault("SGLANG_PLATFORM", PLATFORM)
os.environ.setdefault("TRITON_INTERPRET", "1")

# What SGLang's imports warn about is nobody's concern here.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist
    from sglang.srt import runtime_context
    from sglang.srt.distributed.parallel_state import (
        init_distributed_environment,
        initialize_model_parallel,
    )
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
    from sglang.srt.mem_cache.memory_pool import (
        DSATokenToKVPool,
        MHATokenToKVPool,
        MLATokenToKVPool,
    )
    from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry
    from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.mem_cache.utils import get_storage_hash_str
    from sglang.srt.plugins import load_plugins

PAGE_TOKENS = 4
DEVICE_TOKENS = 64
LAYERS = 3

Kind = Literal["mha", "mla"]

_WAIT_S = 20.0


class RankError(RuntimeError):
    """SGLang's controller did something else than it was asked for."""


def bring_up(rank: int = 0, size: int = 1, rendezvous: Path | None = None) -> None:
    """Load SGLang's plugins and join a tensor-parallel group over gloo, once per process.

    The ranks of a group share `rendezvous`, a file that does not exist yet; a group of one needs
    none.
    """
    if dist.is_initialized():
        return
    load_plugins()
    arguments = runtime_context.get_context().override_server_args(tp_size=size).install()
    widths = {"tensor_model_parallel_size": size}
    if hasattr(runtime_context, "SpawnRanks"):  # since 0.5.21: a rank is told its place
        place = runtime_context.SpawnRanks(world_rank=rank)
        runtime_context.publish(arguments, role="scheduler", ranks=place)
        widths = {}
    init_distributed_environment(
        world_size=size,
        rank=rank,
        local_rank=rank,
        backend="gloo",
        distributed_init_method=f"file://{rendezvous or Path(tempfile.mkdtemp()) / 'group'}",
    )
    initialize_model_parallel(**widths)


def make_pools(kind: Kind, layout: str) -> tuple[Any, Any]:
    """A device pool and a host pool of twice its size; the host pool asks for pinned memory."""
    bring_up()
    if kind == "mha":
        device = MHATokenToKVPool(
            DEVICE_TOKENS,
            PAGE_TOKENS,
            torch.float32,
            2,
            8,
            LAYERS,
            "cpu",
            enable_memory_saver=False,
        )
        return device, MHATokenToKVPoolHost(device, 2.0, 0, PAGE_TOKENS, layout, pin_memory=True)
    device = MLATokenToKVPool(
        DEVICE_TOKENS, PAGE_TOKENS, torch.bfloat16, 16, 8, LAYERS, "cpu", enable_memory_saver=False
    )
    return device, MLATokenToKVPoolHost(device, 2.0, 0, PAGE_TOKENS, layout, pin_memory=True)


def make_indexer(layout: str) -> tuple[Any, Any]:
    """A DSA device pool and the host pool of its indexer."""
    bring_up()
    device = DSATokenToKVPool(
        64,
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


class Rank:
    """A HiCache controller with its pools; `storage_backend` None leaves storage out.

    `sidecars` are further host pools by SGLang's name, for storage alone: they have no device pool.
    """

    def __init__(
        self,
        kind: Kind,
        layout: str,
        io_backend: str,
        *,
        storage_backend: str | None,
        extra_config: Mapping[str, object] | None = None,
        sidecars: Mapping[str, Any] | None = None,
    ) -> None:
        self.device_pool, self.host_pool = make_pools(kind, layout)
        self.allocator = PagedTokenToKVPoolAllocator(
            DEVICE_TOKENS,
            PAGE_TOKENS,
            self.device_pool.dtype,
            "cpu",
            self.device_pool,
            need_sort=False,
        )
        entries = [
            PoolEntry(
                name=PoolName.KV,
                host_pool=self.host_pool,
                device_pool=self.device_pool,
                layer_mapper=lambda layer: layer,
                is_primary_index_anchor=True,
            ),
            *(
                PoolEntry(
                    name=PoolName(name),
                    host_pool=pool,
                    device_pool=None,
                    layer_mapper=lambda layer: layer,
                )
                for name, pool in (sidecars or {}).items()
            ),
        ]
        self.controller = HybridCacheController(
            self.allocator,
            HostPoolGroup(entries),
            PAGE_TOKENS,
            dist.group.WORLD,
            threading.Event(),
            write_policy="write_through",
            io_backend=io_backend,
            storage_backend=storage_backend,
            prefetch_threshold=PAGE_TOKENS,
            model_name="tiny",
            storage_backend_extra_config=dict(extra_config or {}),
        )

    @property
    def store(self) -> Any:  # noqa: ANN401 - a storage backend of SGLang, which ships no types
        return self.controller.storage_backend

    def buffers(self) -> list[torch.Tensor]:
        """The device pool's buffers, layer by layer."""
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
        controller.write_storage(host_indices, tokens, page_hashes(tokens))
        backed_up = controller.ack_backup_queue.get(timeout=_WAIT_S).completed_tokens
        if backed_up != len(tokens):
            raise RankError(f"{backed_up} of {len(tokens)} tokens were backed up")
        controller.evict_host(host_indices)
        self.allocator.free(indices)
        self.host_pool.kv_buffer.zero_()
        for buffer in self.buffers():
            buffer.zero_()
        return written

    def restore(self, tokens: list[int]) -> tuple[int, list[torch.Tensor]]:
        """Prefetch tokens from storage and load them to the device: how many, and their KV."""
        controller = self.controller
        controller.prefetch(CacheRequestHandle("request", 0), tokens)
        hit = controller.prefetch_hit_queue.get(timeout=_WAIT_S)
        if hit.storage_hit_count == 0:
            return 0, []
        hit.host_indices = self.host_pool.alloc(hit.storage_hit_count)
        controller.prefetch_buffer.put(hit)
        completed = 0
        while not (ack := controller.ack_prefetch_queue.get(timeout=_WAIT_S)).completed_req:
            completed = completed if ack.completed_tokens is None else ack.completed_tokens
        if completed == 0:
            return 0, []
        indices = controller.load(hit.host_indices[:completed])
        controller.start_loading()
        controller.ack_load_queue.pop(0).finish_event.synchronize()
        return completed, [buffer[indices].clone() for buffer in self.buffers()]

    def close(self) -> None:
        if self.controller.enable_storage:
            self.controller.detach_storage_backend()


def page_hashes(tokens: list[int]) -> list[str]:
    """SGLang's page hashes of a prompt."""
    hashes: list[str] = get_storage_hash_str(tokens, None, page_size=PAGE_TOKENS)
    return hashes
