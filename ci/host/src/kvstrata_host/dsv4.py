# SPDX-License-Identifier: Apache-2.0
"""SGLang's own device pool of DeepSeek-V4, small and on a CPU.

Importing this imports nothing of SGLang, so that a caller can set it up first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PAGE_TOKENS = 256


def make_device_pool(
    full_tokens: int,
    swa_tokens: int,
    compression_ratios: Sequence[int],
    **changes: Any,  # noqa: ANN401 - arguments of SGLang's own, which ships no types
) -> Any:  # noqa: ANN401
    """A pool of one layer per compression ratio; `changes` are further arguments of SGLang's."""
    import torch
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

    given: dict[str, Any] = {
        "max_num_reqs": 4,
        "swa_size": swa_tokens,
        "c4_size": full_tokens // 4,
        "c128_size": full_tokens // 128,
        "c4_state_pool_size": 64,
        "c128_state_pool_size": 64,
        "page_size": PAGE_TOKENS,
        "swa_page_size": PAGE_TOKENS,
        "dtype": torch.float8_e4m3fn,
        "c4_state_dtype": torch.float32,
        "c128_state_dtype": torch.float32,
        "qk_nope_head_dim": 448,
        "qk_rope_head_dim": 64,
        "indexer_head_dim": 128,
        "layer_num": len(compression_ratios),
        "device": "cpu",
        "enable_memory_saver": False,
        "compression_ratios": list(compression_ratios),
    }
    return DeepSeekV4TokenToKVPool(**given | changes)
