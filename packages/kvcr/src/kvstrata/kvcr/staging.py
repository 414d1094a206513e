# SPDX-License-Identifier: Apache-2.0
"""Staged restores: a peer writes into KVCR's own DRAM only, never into a host page.

The pages stay in the DRAM tier afterwards. A peer that ends or freezes costs the pages of the call,
and never the worker.
"""

import logging
from collections.abc import Mapping

from kvcr.types import BlockKey, CacheTier, ReleaseHandle

from .batch import Batch
from .extension import Extension
from .hints import Hint
from .runner import Blocks, Runner

logger = logging.getLogger(__name__)


def restore_staged(runner: Runner, blocks: Blocks, hint: Hint | None) -> list[bool]:
    """Bring pages into the DRAM tier, then fill host pages from there; whether each was filled.

    Own pages are claimed along with the others, so that these do not push them out. A page that
    finds no room in the tier is a miss.
    """
    keys_by_layout: dict[tuple[str, ...], list[BlockKey]] = {}
    for key, references in blocks.items():
        layout = tuple(reference.label for reference in references)
        keys_by_layout.setdefault(layout, []).append(key)
    claims: dict[BlockKey, ReleaseHandle] = {}
    try:
        for layout, keys in keys_by_layout.items():
            if len(keys) > runner.capacity(layout):
                logger.warning(
                    "kvcr staged restore of %d pages, but the DRAM tier has room for %d: the rest "
                    "are misses. Raise dram_bytes.",
                    len(keys),
                    runner.capacity(layout),
                )
            claims.update(runner.fetch(keys, layout, hint))
        staged = {key: references for key, references in blocks.items() if key in claims}
        filled = dict(zip(staged, runner.deliver(staged, None), strict=True)) if staged else {}
    finally:
        runner.release(claims.values())
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
