# SPDX-License-Identifier: Apache-2.0
"""C4 KV of DeepSeek-V4 in memory that follows SGLang's full page ids."""

from collections.abc import Callable
from typing import Any

from kvstrata.exact_id.patches import ClaimPatch, Wrappers

from kvstrata.exact_id import Claim, IdSpace
from kvstrata.exact_id.ownership import C4, INDEXER
from kvstrata.exact_id.whole_buffers import refuse

CLAIM = Claim(C4, IdSpace.FULL, "kvcached")


class DeepSeekV4C4Patch(ClaimPatch):
    """Have C4 KV managed, and refuse PD transfer, which would read addresses without memory."""

    patch_name = "deepseek_v4_c4"
    claim = CLAIM

    def wrappers(self) -> Wrappers:
        return {"get_contiguous_buf_infos": _page_buffers}


def _page_buffers(original: Callable[..., Any], kvcache: Any) -> Any:
    refuse(kvcache, (C4, INDEXER), "PD transfer")
    return original(kvcache)
