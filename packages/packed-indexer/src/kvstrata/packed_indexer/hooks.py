# SPDX-License-Identifier: Apache-2.0
"""What is changed in SGLang while kvcached is on.

The module behind it imports SGLang, which must not happen before SGLang has loaded its plugins.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import (
        DeepSeekV4IndexerPool,
        DeepSeekV4TokenToKVPool,
    )


def build_indexer(
    original: "Callable[..., DeepSeekV4IndexerPool]",
    kvcache: "DeepSeekV4TokenToKVPool",
    *args: object,
    **kwargs: object,
) -> "DeepSeekV4IndexerPool":
    """AROUND the construction of the pool of index keys."""
    from . import pool

    return pool.build(original, kvcache, *args, **kwargs)
