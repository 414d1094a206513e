# SPDX-License-Identifier: Apache-2.0
"""What is changed in SGLang while kvcached is on."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvstrata.exact_id import whole_buffers
from kvstrata.exact_id.ownership import C4, INDEXER

if TYPE_CHECKING:
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

    BufferInfos = tuple[list[int], list[int], list[int]]


def page_buffers(
    original: "Callable[[DeepSeekV4TokenToKVPool], BufferInfos]", kvcache: "DeepSeekV4TokenToKVPool"
) -> "BufferInfos":
    """AROUND the registration of compressed KV and index keys for PD transfer."""
    whole_buffers.refuse(kvcache, (C4, INDEXER), "PD transfer")
    return original(kvcache)
