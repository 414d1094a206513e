# SPDX-License-Identifier: Apache-2.0
"""Ranks of a server in this process: SGLang's radix trees, pools and controllers, and no model.

A tree is asked to prefetch and to back up as the scheduler does it. Several ranks have gloo groups
of their own, whose members are the storage threads of their controllers.
"""

import time
import warnings
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, TypeAlias
from unittest import mock

# What SGLang's imports warn about is nobody's concern here.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import PrefetchOperation
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKVPool, ReqToTokenPool
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.storage import StorageBackendFactory
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.mem_cache.utils import get_storage_hash_str
    from sglang.srt.runtime_context import get_context
    from torch._C._distributed_c10d import HashStore, PrefixStore

from kvstrata.kvcr.activation import activate
from kvstrata.kvcr.plugin import SEAMS
from kvstrata_host.kvcr.shelf import PAGES_KV, Shelf
from kvstrata_host.rank import bring_up

Tokens: TypeAlias = "array[int]"  # SGLang 0.5.21 takes nothing else
Kind = Literal["mha", "swa", "dsa"]
"""KV alone; beside it a sliding window; beside it an indexer that has KV's indices."""

PAGE_TOKENS = {"mha": 4, "swa": 4, "dsa": 64}
WINDOW_PAGES = 2
_WAIT_S = 20.0


class TreeRank:
    """A radix tree whose storage is a `Shelf`."""

    def __init__(self, kind: Kind, *, pages: int = 16, mode: str = "cache") -> None:
        bring_up()
        self.kind, self.page_tokens = kind, PAGE_TOKENS[kind]
        with _memory(mode):
            params = _parameters(kind, pages)
            self.tree = UnifiedRadixCache(params)
            self.tree.init_hicache(None, params)
        self.controller = self.tree.cache_controller

    def attach(self, store: Callable[..., object] = Shelf) -> str:
        """Attach a store at run time under the name kvcr; SGLang's reason if it did not come."""

        def load() -> Callable[..., object]:
            activate(SEAMS)
            return store

        entry = StorageBackendFactory._registry["kvcr"]
        with mock.patch.dict(entry, {"loader": load}):
            attached, reason = self.tree.attach_storage_backend(
                "kvcr",
                '{"prefetch_threshold": 1}',
                hicache_storage_prefetch_policy="wait_complete",
            )
        self.tree.prefetch_threshold = self.page_tokens
        return "" if attached else str(reason)

    @property
    def shelf(self) -> Shelf:
        store = self.controller.storage_backend
        if not isinstance(store, Shelf):
            raise TypeError(f"not a shelf: {store!r}")
        return store

    def tokens(self, pages: int, *, first: int = 0) -> Tokens:
        return array("q", range(first, first + pages * self.page_tokens))

    def hashes(self, tokens: Tokens, **namespace: str) -> list[str]:
        key = RadixKey(tokens, **namespace)
        hashes: list[str] = get_storage_hash_str(key, None, page_size=self.page_tokens)
        return hashes

    def store(self, tokens: Tokens, *, short: int = 0) -> list[str]:
        """Put all pages on the shelf, in the pools beside KV all but the last `short` ones."""
        hashes = self.hashes(tokens)
        self.shelf.held[PAGES_KV].update(hashes)
        for pool in self.other_pools():
            self.shelf.held[pool].update(hashes[: len(hashes) - short])
        return hashes

    def other_pools(self) -> list[str]:
        names = [str(entry.name) for entry in self.controller.mem_pool_host.entries]
        return [name for name in names if name != PAGES_KV]

    def prefetch(self, tokens: Tokens, rid: str = "request", **given: Any) -> Any:
        """Ask for tokens after the root; the request's handle."""
        handle = CacheRequestHandle(rid, 0)
        self.tree.prefetch_from_storage(
            handle, self.tree.root_node_handle(), tokens, None, None, **given
        )
        return handle

    def query(self, pages: int, *, cancelled: bool = False, **given: Any) -> Any:
        """An operation that the storage threads are to settle, without a tree; see `settled`."""
        handle = CacheRequestHandle("without a tree", 0)
        operation = PrefetchOperation(handle, self.tokens(pages), **given)
        if cancelled:
            operation.mark_terminate()
        self.controller.prefetch_queue.put(operation)
        return operation

    def settled(self) -> Any:
        """The next operation of which is known what may be restored."""
        return self.controller.prefetch_hit_queue.get(timeout=_WAIT_S)

    def restored(self, handle: Any) -> int:
        """Run the scheduler's side until a prefetch is over; how many tokens it brought."""
        until(lambda: self._over(handle))
        return int(self.tree.pop_prefetch_loaded_tokens(handle) or 0)

    def _over(self, handle: Any) -> bool:
        self.tree.drain_storage_control_queues()
        return self.tree.check_prefetch_progress(handle) and self.is_idle()

    def is_idle(self) -> bool:
        """Whether nothing of a prefetch is under way in any thread or queue."""
        controller = self.controller
        queues = (
            controller.prefetch_queue,
            controller.prefetch_hit_queue,
            controller.prefetch_buffer,
            controller.prefetch_sync_queue,
            controller.ack_prefetch_queue,
            controller.host_mem_release_queue,
            *controller.extra_host_mem_release_queues.values(),
        )
        return not self.tree.ongoing_prefetch and all(queue.empty() for queue in queues)

    def free_slots(self) -> dict[str, int]:
        """Free token slots of each host pool."""
        entries = self.controller.mem_pool_host.entries
        return {
            str(entry.name): int(entry.host_pool.available_size())
            for entry in entries
            if not entry.is_primary_index_anchor or str(entry.name) == PAGES_KV
        }

    def threads_are_alive(self) -> bool:
        controller = self.controller
        return all(
            thread.is_alive()
            for thread in (
                controller.prefetch_thread,
                controller.prefetch_io_aux_thread,
                controller.prefetch_sync_thread,
                controller.backup_thread,
            )
        )

    def close(self) -> None:
        if self.controller.enable_storage:
            self.controller.detach_storage_backend()


@contextmanager
def attached(kind: Kind, **given: Any) -> Iterator[TreeRank]:
    """A rank with an empty shelf."""
    rank = TreeRank(kind, **given)
    refusal = rank.attach()
    if refusal:
        raise RuntimeError(refusal)
    try:
        yield rank
    finally:
        rank.close()


@contextmanager
def ranks(count: int, kind: Kind, **given: Any) -> Iterator[list[TreeRank]]:
    """Ranks of one server, each with an empty shelf of its own."""
    made = [TreeRank(kind, **given) for _ in range(count)]
    try:
        for rank in made:
            if refusal := rank.attach():
                raise RuntimeError(refusal)
        hits, completions, scheduling = (_groups(count) for _ in range(3))
        for i, rank in enumerate(made):
            rank.controller.prefetch_hits_sync_groups = [hits[i]]
            rank.controller.prefetch_completion_sync_groups = [completions[i]]
            rank.tree.attn_tp_group = scheduling[i]
        yield made
    finally:
        for rank in made:
            rank.close()


def _groups(count: int) -> list[Any]:
    """The members of one gloo group, by rank."""
    store = HashStore()

    def join(rank: int) -> Any:
        return dist.ProcessGroupGloo(
            PrefixStore("ranks", store), rank, count, timedelta(seconds=_WAIT_S)
        )

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(join, range(count)))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("SGLang did not come to an end")
        time.sleep(0.002)


@contextmanager
def _memory(mode: str) -> Iterator[None]:
    override = get_context().override_server_args(
        hicache_ratio=2.0,
        hicache_mem_layout="page_first_direct",
        hicache_io_backend="direct",
        hicache_host_memory_mode=mode,
    )
    override.install()
    try:
        yield
    finally:
        override.restore()


def _parameters(kind: Kind, pages: int) -> CacheInitParams:
    page_tokens = PAGE_TOKENS[kind]
    size = pages * page_tokens
    components = [ComponentType.FULL]
    pool: Any
    allocator: Any
    if kind == "swa":
        components.append(ComponentType.SWA)
        pool = SWAKVPool(size, size, page_tokens, torch.float32, 2, 8, [1], [0], "cpu")
        allocator = SWATokenToKVPoolAllocator(
            size, size, page_tokens, pool.dtype, "cpu", pool, need_sort=False
        )
    else:
        if kind == "mha":
            pool = MHATokenToKVPool(
                size, page_tokens, torch.float32, 2, 8, 2, "cpu", enable_memory_saver=False
            )
        else:
            pool = DSATokenToKVPool(
                size,
                page_size=page_tokens,
                kv_lora_rank=512,
                dtype=torch.bfloat16,
                qk_rope_head_dim=64,
                layer_num=2,
                device="cpu",
                index_head_dim=128,
                enable_memory_saver=False,
                kv_cache_dim=576,
            )
        allocator = PagedTokenToKVPoolAllocator(
            size, page_tokens, pool.dtype, "cpu", pool, need_sort=False
        )
    return CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(4, size, "cpu", enable_memory_saver=False),
        token_to_kv_pool_allocator=allocator,
        page_size=page_tokens,
        tp_cache_group=dist.group.WORLD,
        sliding_window_size=WINDOW_PAGES * page_tokens if kind == "swa" else None,
        tree_components=tuple(components),
    )
