# SPDX-License-Identifier: Apache-2.0
"""The patch, applied as kvcached's autopatch applies it."""

from kvstrata.exact_id.plugin import apply


def load() -> None:
    # Not before kvcached's environment is set.
    from kvstrata.packed_indexer import DeepSeekV4IndexerPatch

    apply(DeepSeekV4IndexerPatch())
