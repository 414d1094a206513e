# SPDX-License-Identifier: Apache-2.0
"""A prefix that ages as one.

KVCR drops the page that was used longest ago, and of a sequence that was aligned, the last one
first. By itself it knows of no sequence: a later use of the tail alone leaves the head to be
dropped before it, and a tail without its head is memory that nobody can restore from. So every use
of a page counts as a use of all pages before it, in every pool; and while pages are put into a full
tier, those before them are claimed, so that they cannot be dropped to make room.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from kvcr.types import BlockKey, CacheTier

from kvstrata.kvcr.batch import Batch
from kvstrata.kvcr.config import KvcrConfig
from kvstrata.kvcr.extension import Extension
from kvstrata.kvcr.hints import Hint
from kvstrata.kvcr.keys import namespace_of, page_keys, page_of
from kvstrata.kvcr.runner import Runner

from .around import Around

if TYPE_CHECKING:
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


class AlignedRecency(Around):
    """Aligns the prefix and the pages of every call; has SGLang say the prefix."""

    def __init__(self, inner: Extension, config: KvcrConfig) -> None:
        super().__init__(inner)
        self._restores_fill_tier = config.peer_restore_mode == "staged"
        self._namespaces: dict[str, bytes] = {}

    def attached(self, cache: "UnifiedRadixCache") -> None:
        cache.hicache_storage_pass_prefix_keys = True
        self.inner.attached(cache)

    def restore(
        self, runner: Runner, batch: Batch, found: Mapping[BlockKey, CacheTier], hint: Hint | None
    ) -> list[bool]:
        self._learn(batch)
        fills_tier = self._restores_fill_tier and CacheTier.REMOTE_G2 in found.values()
        with self._kept(runner, batch.prefix) if fills_tier else nullcontext():
            filled = self.inner.restore(runner, batch, found, hint)
            self._align(runner, batch, dict(zip(found, filled, strict=True)))
        return filled

    def deposit(self, runner: Runner, batch: Batch) -> list[bool]:
        self._learn(batch)
        with self._kept(runner, batch.prefix):
            held = self.inner.deposit(runner, batch)
            self._align(runner, batch, dict(zip(batch.blocks, held, strict=True)))
        return held

    def _learn(self, batch: Batch) -> None:
        for pool, keys in batch.keys.items():
            if keys and keys[0] is not None:
                self._namespaces[pool] = namespace_of(keys[0])

    def _align(self, runner: Runner, batch: Batch, done: Mapping[BlockKey, bool]) -> None:
        """Align up to the first page that is not there in some pool of the batch."""
        pages = list(dict.fromkeys([*batch.prefix, *map(page_of, batch.blocks)]))
        missing = {page_of(key) for key in batch.blocks if not done.get(key, False)}
        end = next((at for at, page in enumerate(pages) if page in missing), len(pages))
        of_pools = [page_keys(pages[:end], each) for each in self._namespaces.values()]
        runner.align([key for of_page in zip(*of_pools, strict=True) for key in of_page])

    @contextmanager
    def _kept(self, runner: Runner, prefix: Sequence[str]) -> Iterator[None]:
        """Claims on the pages of a prefix that are in the tier."""
        with ExitStack() as claims:
            for pool, namespace in self._namespaces.items():
                keys = page_keys(prefix, namespace)
                tiers = runner.query(keys, None)
                present = [key for key, tier in zip(keys, tiers, strict=True) if tier is not None]
                if present:
                    layout = runner.pools.named(pool).labels
                    claims.enter_context(runner.claimed(present, layout, None))
            yield
