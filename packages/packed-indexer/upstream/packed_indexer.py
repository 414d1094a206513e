# SPDX-License-Identifier: Apache-2.0
"""Packed index keys of DeepSeek-V4 in memory that follows SGLang's full page ids."""

from kvstrata.exact_id.patches import ClaimPatch, Wrappers

from kvstrata.exact_id import Claim, IdSpace
from kvstrata.exact_id.ownership import INDEXER

CLAIM = Claim(INDEXER, IdSpace.FULL, "kvcached")


class DeepSeekV4IndexerPatch(ClaimPatch):
    """Have the pool of packed index keys managed."""

    patch_name = "deepseek_v4_indexer"
    claim = CLAIM

    def wrappers(self) -> Wrappers:
        from kvstrata.packed_indexer.pool import build

        return {"_make_indexer_pool": build}
