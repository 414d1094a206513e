# SPDX-License-Identifier: Apache-2.0
"""Host pools of hybrid models: SGLang's own, small, on a CPU, without the models.

Host pools of several names belong together; the first is the anchor.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from kvstrata_host.dsv4 import PAGE_TOKENS as _V4_PAGE_TOKENS
from kvstrata_host.dsv4 import make_device_pool
from kvstrata_host.rank import LAYERS, PAGE_TOKENS, bring_up, make_indexer, make_pools

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from sglang.srt.configs.mamba_utils import (
        Mamba2CacheParams,
        Mamba2StateDType,
        Mamba2StateShape,
    )
    from sglang.srt.mem_cache.memory_pool import MambaPool, MHATokenToKVPool
    from sglang.srt.mem_cache.memory_pool_host import (
        DeepSeekV4PagedHostPool,
        DeepSeekV4StateHostPool,
        LogicalHostPool,
    )
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

HYBRIDS = ("swa", "mamba", "indexer", "v4")

_V4_PAGES = 12
_V4_RATIOS = [0, 4, 128, 4]
_WINDOW_TOKENS = 8 * PAGE_TOKENS
_STATES = 6


def make_hybrid(kind: str, layout: str) -> dict[str, Any]:
    """Host pools by SGLang's name: KV and a sliding window, KV and Mamba states, KV and its DSA
    indexer, or DeepSeek-V4's pools behind a logical anchor."""
    bring_up()
    if kind == "swa":
        return {"kv": make_pools("mha", layout)[1], "swa": make_window(layout)}
    if kind == "mamba":
        return {"kv": make_pools("mha", layout)[1], "mamba": make_states(layout)}
    if kind == "indexer":
        device, indexer = make_indexer(layout)
        kv = MLATokenToKVPoolHost(device, 2.0, 0, indexer.page_size, layout, pin_memory=True)
        return {"kv": kv, "indexer": indexer}
    return make_v4(layout)


def make_window(layout: str) -> Any:  # noqa: ANN401 - SGLang ships no types
    """The host pool of sliding-window layers."""
    bring_up()
    device = MHATokenToKVPool(
        _WINDOW_TOKENS,
        PAGE_TOKENS,
        torch.float32,
        2,
        8,
        LAYERS + 1,
        "cpu",
        enable_memory_saver=False,
    )
    return MHATokenToKVPoolHost(device, 2.0, 0, PAGE_TOKENS, layout, pin_memory=True)


def make_states(layout: str, temporal: torch.dtype = torch.float32) -> Any:  # noqa: ANN401
    """The host pool of Mamba states: a page is one state of a temporal and two conv tensors."""
    bring_up()
    # What a shape says besides its tensors is nothing to a pool of states.
    shape: dict[str, object] = {field.name: 1 for field in dataclasses.fields(Mamba2StateShape)}
    shape |= {
        "conv": [(12, 3), (8, 3)],
        "temporal": (2, 4, 8),
        "disable_conv_window_dedup": False,
        "conv_kernel": 4,
        "conv_shard_groups": None,
    }
    device = MambaPool(
        size=_STATES,
        spec_state_size=0,
        cache_params=Mamba2CacheParams(
            shape=Mamba2StateShape(**shape),
            dtype=Mamba2StateDType(conv=torch.bfloat16, temporal=temporal),
            layers=list(range(LAYERS)),
        ),
        mamba_layer_ids=list(range(LAYERS)),
        device="cpu",
    )
    return MambaPoolHost(device, 2.0, 0, pin_memory=False, layout=layout)


def make_v4(layout: str) -> dict[str, Any]:
    """DeepSeek-V4's host pools: an anchor without bytes, compressed KV, indexer, window, states."""
    bring_up()
    tokens = 4 * _V4_PAGE_TOKENS
    device = make_device_pool(tokens, tokens // 2, _V4_RATIOS)

    def paged(name: str, buffers: list[torch.Tensor]) -> Any:  # noqa: ANN401
        return DeepSeekV4PagedHostPool(
            name,
            buffers,
            buffers[0][0].nbytes,
            _V4_PAGES,
            _V4_PAGE_TOKENS,
            layout,
            pin_memory=False,
        )

    def states(name: str, pools: list[Any]) -> Any:  # noqa: ANN401
        present = [pool for pool, ratio in zip(pools, _V4_RATIOS, strict=True) if ratio == 4]
        return DeepSeekV4StateHostPool(
            name, present, _V4_PAGES // 2, _V4_PAGE_TOKENS, layout, pin_memory=False
        )

    indexer = device.c4_indexer_kv_pool.index_k_with_scale_buffer
    return {
        "kv": LogicalHostPool(_V4_PAGES * _V4_PAGE_TOKENS, _V4_PAGE_TOKENS, layout),
        "swa": paged("swa", list(device.swa_kv_pool.kv_buffer)),
        "deepseek_v4_c4": paged("deepseek_v4_c4", list(device.c4_kv_pool.kv_buffer)),
        "deepseek_v4_c4_indexer": paged("deepseek_v4_c4_indexer", list(indexer)),
        "deepseek_v4_c128": paged("deepseek_v4_c128", list(device.c128_kv_pool.kv_buffer)),
        "deepseek_v4_c4_state": states("deepseek_v4_c4_state", device.compress_state_pools),
        "deepseek_v4_c4_indexer_state": states(
            "deepseek_v4_c4_indexer_state", device.indexer_compress_state_pools
        ),
    }
