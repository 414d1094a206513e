# SPDX-License-Identifier: Apache-2.0
"""KV and the pools that go with it in one operation, instead of one for each."""

from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

from .around import Around


class CombinedIO(Around):
    """Joins the pools that have KV's indices and are needed for all pages of a prefix."""

    def joins_kv(self, transfer: PoolTransfer) -> bool:
        return bool(
            transfer.indices_from_pool == PoolName.KV
            and transfer.hit_policy == PoolHitPolicy.ALL_PAGES
        )
