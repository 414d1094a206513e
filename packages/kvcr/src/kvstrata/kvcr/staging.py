# SPDX-License-Identifier: Apache-2.0
"""Staged restores: a peer writes into KVCR's own DRAM only, never into a host page.

The pages stay in the DRAM tier afterwards. A peer that ends or freezes costs the pages of the call,
and never the worker.
"""

import logging
from collections.abc import Mapping
from contextlib import ExitStack

from kvcr.types import BlockKey, CacheTier, MemoryRef

from .batch import Batch, by_layout
from .extension import Extension
from .hints import Hint
from .runner import Blocks, Runner

logger = logging.getLogger(__name__)


def restore_staged(runner: Runner, blocks: Blocks, hint: Hint | None) -> list[bool]:
    """Bring pages into the DRAM tier, then fill host pages from there; whether each was filled.

    Own pages are claimed along with the others, so that these do not push them out. A page that
    finds no room in the tier is a miss.
    """
    filled: dict[BlockKey, bool] = {}
    with ExitStack() as claims:
        staged: dict[BlockKey, list[MemoryRef]] = {}
        for layout, part in by_layout(blocks).items():
            if len(part) > runner.capacity(layout):
                logger.warning(
                    "kvcr staged restore of %d pages, but the DRAM tier has room for %d: the rest "
                    "are misses. Raise dram_bytes.",
                    len(part),
                    runner.capacity(layout),
                )
            claimed = claims.enter_context(runner.claimed(list(part), layout, hint))
            staged.update((key, part[key]) for key in claimed)
        if staged:
            filled = dict(zip(staged, runner.deliver(staged, None), strict=True))
    return [filled.get(key, False) for key in blocks]


class Staged(Extension):
    """The backend's own ways where ``peer_restore_mode`` is ``staged``."""

    def restore(
        self,
        runner: Runner,
        batch: Batch,
        found: Mapping[BlockKey, CacheTier],
        hint: Hint | None,
    ) -> list[bool]:
        if CacheTier.REMOTE_G2 in found.values():
            return restore_staged(runner, batch.only(found), hint)
        return super().restore(runner, batch, found, hint)


STAGED = Staged()
