# SPDX-License-Identifier: Apache-2.0
"""What a store of a rank uses for some options."""

from collections.abc import Mapping
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

from kvstrata.kvcr.extension import Extension
from kvstrata.kvcr.store import KvcrStore
from kvstrata_host.kvcr.replica import RANK, settings
from kvstrata_host.rank import bring_up


def ways_of(tuning: Mapping[str, object], **topology: Any) -> Extension:
    """The ways of a store with these options, on a rank of this topology."""
    bring_up()
    extra = settings(tuning=dict(tuning))
    config = HiCacheStorageConfig(**{**vars(RANK), **topology, "extra_config": extra})
    ways: Extension = KvcrStore(config, "unused").ways
    return ways
