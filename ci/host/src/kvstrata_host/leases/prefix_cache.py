# SPDX-License-Identifier: Apache-2.0
"""SGLang's own radix cache over a model's allocator."""

from array import array

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from .model import PAGE_TOKENS, Model


class PrefixCache:
    """Keeps prompts of whole pages by their token ids."""

    def __init__(self, model: Model) -> None:
        self._allocator = model.allocator
        self._requests = ReqToTokenPool(4, 64 * PAGE_TOKENS, "cpu", enable_memory_saver=False)
        self._cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self._requests,
                token_to_kv_pool_allocator=model.allocator,
                page_size=PAGE_TOKENS,
                sliding_window_size=128,
                tree_components=(ComponentType.FULL, ComponentType.SWA),
            )
        )

    def keep(self, prompt: list[int], tokens: torch.Tensor, *, retired_count: int = 0) -> None:
        """Hand the tokens of a request that is over to the cache.

        The first `retired_count` of them have no window any more.
        """
        self._cache.insert(
            InsertParams(key=_key(prompt), value=tokens, swa_evicted_seqlen=retired_count)
        )

    def find(self, prompt: list[int]) -> torch.Tensor:
        """The tokens of the longest prefix that is kept."""
        found: torch.Tensor = self._cache.match_prefix(
            MatchPrefixParams(key=_key(prompt))
        ).device_indices
        return found

    def evict(self, token_count: int) -> None:
        """Free the least recently used tokens, at least so many, with their windows."""
        self._cache.evict(EvictParams(num_tokens=token_count))

    def flush(self) -> None:
        """What SGLang's scheduler does for /flush_cache and before it releases memory."""
        self._cache.reset()
        self._requests.clear()
        self._allocator.clear()


def _key(prompt: list[int]) -> RadixKey:
    return RadixKey(array("q", prompt))
