# SPDX-License-Identifier: Apache-2.0
"""The patch, applied as kvcached's autopatch applies it."""

from kvstrata.exact_id.plugin import apply


def load() -> None:
    # Not before kvcached's environment is set.
    from kvstrata.c4_kv import DeepSeekV4C4Patch

    apply(DeepSeekV4C4Patch())
