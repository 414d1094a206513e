# SPDX-License-Identifier: Apache-2.0
"""An extension that leaves everything to another one: each option overrides the little it changes.

So options nest in any combination, and none knows another.
"""

import mmap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kvcr.types import BlockKey, CacheTier
from sglang.srt.mem_cache.hicache_storage import PoolTransfer

from kvstrata.kvcr.batch import Batch
from kvstrata.kvcr.config import KvcrConfig
from kvstrata.kvcr.extension import Extension
from kvstrata.kvcr.hints import Hint
from kvstrata.kvcr.pools import HostPools
from kvstrata.kvcr.runner import Runner

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


class Around(Extension):
    """Does all in the ways of `inner`."""

    def __init__(self, inner: Extension) -> None:
        self.inner = inner
        self.read_batch_pages = inner.read_batch_pages
        self.shared_pages = inner.shared_pages
        self.keeps_pages = inner.keeps_pages

    def prepare(self, pools: HostPools) -> HostPools:
        return self.inner.prepare(pools)

    def dram_bytes(self, config: KvcrConfig, pools: HostPools) -> int:
        return self.inner.dram_bytes(config, pools)

    def allocate(self, size_bytes: int) -> mmap.mmap:
        return self.inner.allocate(size_bytes)

    def attached(self, cache: "UnifiedRadixCache") -> None:
        self.inner.attached(cache)

    def counterpart(self, rank: int) -> int:
        return self.inner.counterpart(rank)

    def joins_kv(self, transfer: PoolTransfer) -> bool:
        return self.inner.joins_kv(transfer)

    def locate(
        self, runner: Runner, keys: Sequence[BlockKey], hint: Hint | None
    ) -> list[CacheTier | None]:
        return self.inner.locate(runner, keys, hint)

    def restore(
        self, runner: Runner, batch: Batch, found: Mapping[BlockKey, CacheTier], hint: Hint | None
    ) -> list[bool]:
        return self.inner.restore(runner, batch, found, hint)

    def deposit(self, runner: Runner, batch: Batch) -> list[bool]:
        return self.inner.deposit(runner, batch)

    def stage(self, name: str) -> AbstractContextManager[None]:
        return self.inner.stage(name)
