# SPDX-License-Identifier: Apache-2.0
"""The patches, applied as kvcached's autopatch applies them."""

from typing import Any


def load() -> None:
    # Not before kvcached's environment is set.
    from kvstrata.exact_id import patches

    apply(
        patches.DeepSeekV4AllocatorPatch(),
        patches.DeepSeekV4HiCachePatch(),
        patches.DeepSeekV4LinkerPatch(),
        patches.DeepSeekV4PoolPatch(),
    )


def apply(*chosen: Any) -> None:
    """Apply patches, all of them or it is an error."""
    from kvcached.integration.patch_base import PatchManager
    from kvstrata.exact_id.patches import SGLANG_RANGE

    manager = PatchManager("sglang")
    manager.register_patches_with_versions([(each, SGLANG_RANGE) for each in chosen])
    results = manager.apply_all_patches()
    if not all(results.values()) or len(results) != len(chosen):
        raise RuntimeError(f"not every patch was applied: {results}")
