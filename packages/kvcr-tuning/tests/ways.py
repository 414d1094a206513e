# SPDX-License-Identifier: Apache-2.0
"""What a store of a rank uses for some options."""

from collections.abc import Mapping
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

from kvstrata.kvcr.extension import Extension
from kvstrata.kvcr.store import KvcrStore
from kvstrata.kvcr_tuning import TuningConfig
from kvstrata_host.kvcr.replica import PATIENT, RANK, settings
from kvstrata_host.rank import bring_up

_NEEDS_SETUP = ("stage_metrics", "huge_pages")
"""Options that need a server's metrics or the kernel's leave, and change nothing of restores."""


def switches(*left_out: str) -> dict[str, object]:
    """Every option that is a switch and needs no set-up, on, but for some."""
    off = TuningConfig()
    names = (name for name in off.__struct_fields__ if getattr(off, name) is False)
    return {name: True for name in names if name not in {*left_out, *_NEEDS_SETUP}}


def ways_of(tuning: Mapping[str, object], **topology: Any) -> Extension:
    """The ways of a store with these options, on a rank of this topology."""
    bring_up()
    extra = settings(**PATIENT, tuning=dict(tuning))
    config = HiCacheStorageConfig(**{**vars(RANK), **topology, "extra_config": extra})
    ways: Extension = KvcrStore(config, "unused").ways
    return ways
