# SPDX-License-Identifier: Apache-2.0
"""The patch, applied as kvcached's autopatch applies it."""


def load() -> None:
    # Not before kvcached's environment is set.
    from kvcached.integration.patch_base import PatchManager
    from kvstrata.exact_id.patches import SGLANG_RANGE

    from kvstrata.packed_indexer import DeepSeekV4IndexerPatch

    manager = PatchManager("sglang")
    manager.register_patch(DeepSeekV4IndexerPatch(), SGLANG_RANGE)
    results = manager.apply_all_patches()
    if list(results.values()) != [True]:
        raise RuntimeError(f"the patch was not applied: {results}")
