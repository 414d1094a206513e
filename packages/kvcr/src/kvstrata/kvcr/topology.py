# SPDX-License-Identifier: Apache-2.0
"""Where a rank stands among the ranks of its server."""

from typing import TYPE_CHECKING

from .errors import ConfigError

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig


def check_topology(config: "HiCacheStorageConfig") -> None:
    """Raise ConfigError for a topology whose pages cannot be told apart or found at a peer."""
    if config.pp_size > 1:
        raise ConfigError(
            "--pp-size", config.pp_size, "1", "Pipeline parallelism is not supported by kvcr."
        )
    if config.should_split_heads:
        raise ConfigError(
            "tp_lcm_size",
            config.tp_lcm_size,
            "unset, with equal TP on all replicas",
            "Heads split over different TP sizes are not supported by kvcr.",
        )


def rank_of(config: "HiCacheStorageConfig") -> int:
    """Offset of a rank's ports; every producer of hints names rank 0 alone."""
    outer = config.attn_cp_rank + config.attn_cp_size * config.pp_rank
    rank: int = config.tp_rank + config.tp_size * outer
    return rank
