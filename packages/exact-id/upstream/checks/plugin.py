# SPDX-License-Identifier: Apache-2.0
"""The patches, applied as kvcached's autopatch applies them."""

from kvcached.integration.patch_base import PatchManager
from kvstrata.exact_id import patches


def load() -> None:
    manager = PatchManager("sglang")
    chosen = (
        patches.DeepSeekV4AllocatorPatch(),
        patches.DeepSeekV4HiCachePatch(),
        patches.DeepSeekV4LinkerPatch(),
        patches.DeepSeekV4PoolPatch(),
    )
    manager.register_patches_with_versions([(each, patches.SGLANG_RANGE) for each in chosen])
    results = manager.apply_all_patches()
    if not all(results.values()) or len(results) != len(chosen):
        raise RuntimeError(f"not every patch was applied: {results}")
