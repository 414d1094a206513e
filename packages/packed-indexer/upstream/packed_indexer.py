# SPDX-License-Identifier: Apache-2.0
"""Packed index keys of DeepSeek-V4 in memory that follows SGLang's full page ids."""

import types

from kvstrata.exact_id.patches import ExactIdPatch, Wrappers

from kvstrata.exact_id import Claim, IdSpace, claim
from kvstrata.exact_id.ownership import INDEXER

CLAIM = Claim(INDEXER, IdSpace.FULL, "kvcached")


class DeepSeekV4IndexerPatch(ExactIdPatch):
    """Have the pool of packed index keys managed."""

    target_module = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
    target_class = "DeepSeekV4TokenToKVPool"
    patch_name = "deepseek_v4_indexer"

    def apply(self, target_module: types.ModuleType) -> bool:
        if not super().apply(target_module):
            return False
        claim(CLAIM)
        return True

    def wrappers(self) -> Wrappers:
        from kvstrata.packed_indexer.pool import build

        return {"_make_indexer_pool": build}
