# SPDX-License-Identifier: Apache-2.0
"""Readers that take the buffers of pools as a whole, and may not have those of managed ones."""

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from .discovery import managed_pools_of
from .errors import SetupError
from .gating import SWITCH

if TYPE_CHECKING:
    from sglang.srt.mem_cache.memory_pool import KVCache


def refuse(kvcache: "KVCache", names: Collection[str], reader: str) -> None:
    """Raise SetupError if any pool of `names` is managed in `kvcache`."""
    managed = [pool.name for pool in managed_pools_of(kvcache) or () if pool.name in names]
    if managed:
        raise refusal(managed, reader)


def refusal(managed: Collection[str], reader: str) -> SetupError:
    """The error of a reader of the whole buffers of managed pools.

    Most of their addresses have no memory: they would be read as zeros, and a write to one would
    be seen at all others.
    """
    return SetupError(
        SWITCH,
        os.environ.get(SWITCH),
        f"off for {reader}, which takes the whole buffers of {', '.join(managed)}",
        f"Start the server with {SWITCH}=0.",
    )
