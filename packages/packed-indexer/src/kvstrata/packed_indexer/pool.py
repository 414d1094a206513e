# SPDX-License-Identifier: Apache-2.0
"""SGLang's pool of packed index keys, with their scales, over managed memory."""

from collections.abc import Callable

import torch
from sglang.srt.mem_cache.deepseek_v4_memory_pool import (
    DeepSeekV4IndexerPool,
    DeepSeekV4TokenToKVPool,
)

from kvstrata.exact_id import ManagedPools
from kvstrata.exact_id.discovery import selected_pools_of
from kvstrata.exact_id.ownership import INDEXER
from kvstrata.exact_id.rows import managed_rows
from kvstrata.exact_id.whole_buffers import refusal


def build(
    original: Callable[..., DeepSeekV4IndexerPool],
    kvcache: DeepSeekV4TokenToKVPool,
    *args: object,
    **kwargs: object,
) -> DeepSeekV4IndexerPool:
    """Make the pool: SGLang's own, or, where it is selected, one on managed memory."""
    pools = selected_pools_of(kvcache, INDEXER)
    if pools is None:
        return original(kvcache, *args, **kwargs)
    return BackedIndexerPool(pools, *args, **kwargs)


class BackedIndexerPool(DeepSeekV4IndexerPool):  # type: ignore[misc]
    """Rows of SGLang's size for a page: 8,448 bytes for FP8 keys, 4,352 for FP4 ones."""

    def __init__(self, pools: ManagedPools, *args: object, **kwargs: object) -> None:
        self._pools = pools
        super().__init__(*args, **kwargs)

    def contiguous_page_row_buffers(self) -> list[torch.Tensor]:
        raise refusal([INDEXER], "PD transfer")

    def _create_buffer(self) -> None:
        self.index_k_with_scale_buffer = managed_rows(
            self,
            INDEXER,
            self._pools,
            page_bytes=self.page_size * self.get_bytes_per_token(),
            dtype=self.index_k_with_scale_buffer_dtype,
        )
