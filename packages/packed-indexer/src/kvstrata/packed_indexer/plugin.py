# SPDX-License-Identifier: Apache-2.0
"""Entry point for SGLang: with ENABLE_KVCACHED on, packed index keys may be managed."""

import os

from kvstrata.exact_id import Claim, IdSpace, claim
from kvstrata.exact_id.gating import SWITCH, is_supported
from kvstrata.exact_id.ownership import INDEXER
from kvstrata.seams import Hook, Kind, Pin, Seams, apply

from . import hooks

_POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool"

CLAIM = Claim(INDEXER, IdSpace.FULL, "kvstrata-packed-indexer")

SEAMS = Seams(
    slice="kvstrata-packed-indexer",
    upstream="sglang",
    switch=f"{SWITCH}=1",
    hooks=(
        Hook(
            kind=Kind.AROUND,
            function=hooks.build_indexer,
            why="A managed pool gets its memory while it is made, and never buffers of SGLang's.",
            pins={"0.5.20": Pin(f"{_POOL}._make_indexer_pool", "220986b135827925")},
        ),
    ),
)


def load() -> None:
    """Claim the indexer if ENABLE_KVCACHED is on and kvcached is the supported release."""
    if is_supported(os.environ):
        apply(SEAMS)
        claim(CLAIM)
