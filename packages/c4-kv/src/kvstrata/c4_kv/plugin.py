# SPDX-License-Identifier: Apache-2.0
"""Entry point for SGLang: with ENABLE_KVCACHED on, C4 KV is managed by exact-id's means.

exact-id makes the pool, leases its pages and lets them go. Here is what it may do so for, and what
keeps others from taking the pool for a buffer.
"""

import os

from kvstrata.exact_id import Claim, IdSpace, claim
from kvstrata.exact_id.gating import SWITCH, is_supported
from kvstrata.exact_id.ownership import C4
from kvstrata.seams import Hook, Kind, Pin, Seams, apply

from . import hooks

_POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool"

CLAIM = Claim(C4, IdSpace.FULL, "kvstrata-c4-kv")

SEAMS = Seams(
    slice="kvstrata-c4-kv",
    upstream="sglang",
    switch=f"{SWITCH}=1",
    hooks=(
        Hook(
            kind=Kind.AROUND,
            function=hooks.page_buffers,
            why="PD transfer may not read addresses without memory.",
            pins={"0.5.20": Pin(f"{_POOL}.get_contiguous_buf_infos", "bd2e30f1bad91614")},
        ),
    ),
)


def load() -> None:
    """Claim C4 KV if ENABLE_KVCACHED is on and kvcached is the supported release."""
    if is_supported(os.environ):
        apply(SEAMS)
        claim(CLAIM)
