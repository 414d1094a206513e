# SPDX-License-Identifier: Apache-2.0
"""The patches, applied as kvcached's autopatch applies them."""


def load() -> None:
    # Not before kvcached's environment is set.
    from kvcached.integration.patch_base import PatchManager

    from kvstrata.exact_id import patches

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
