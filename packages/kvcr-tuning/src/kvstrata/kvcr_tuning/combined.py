# SPDX-License-Identifier: Apache-2.0
"""KV and the pools that go with it in one operation, instead of one for each.

The pages of an operation go to KVCR page by page, not pool by pool. KVCR makes room by the least
recent use, and looks over every older page of the pools that it needs no room in: with those of
one pool behind those of another, each of them would be looked over for each new page.
"""

import dataclasses
from collections.abc import Mapping
from itertools import chain, zip_longest

from kvcr.types import BlockKey, CacheTier
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

from kvstrata.kvcr.batch import Batch
from kvstrata.kvcr.hints import Hint
from kvstrata.kvcr.runner import Runner

from .around import Around


class CombinedIO(Around):
    """Joins the pools that have KV's indices and are needed for all pages of a prefix."""

    def joins_kv(self, transfer: PoolTransfer) -> bool:
        return bool(
            transfer.indices_from_pool == PoolName.KV
            and transfer.hit_policy == PoolHitPolicy.ALL_PAGES
        )

    def restore(
        self, runner: Runner, batch: Batch, found: Mapping[BlockKey, CacheTier], hint: Hint | None
    ) -> list[bool]:
        mixed = _page_by_page(batch)
        tiers = {key: found[key] for key in mixed.blocks if key in found}
        filled = self.inner.restore(runner, mixed, tiers, hint)
        is_filled = dict(zip(tiers, filled, strict=True))
        return [is_filled[key] for key in found]

    def deposit(self, runner: Runner, batch: Batch) -> list[bool]:
        mixed = _page_by_page(batch)
        held = dict(zip(mixed.blocks, self.inner.deposit(runner, mixed), strict=True))
        return [held[key] for key in batch.blocks]


def _page_by_page(batch: Batch) -> Batch:
    """The same blocks, the first page's of every pool before the second page's."""
    keys = chain.from_iterable(zip_longest(*batch.keys.values()))
    return dataclasses.replace(batch, blocks=batch.only(key for key in keys if key is not None))
