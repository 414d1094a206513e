# SPDX-License-Identifier: Apache-2.0
"""What the store does between two starts of KVCR: query, restore and back up pages of its pools."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvcr.types import BlockKey, CacheTier

from .batch import Batch, PoolPages
from .endpoints import Endpoint
from .extension import Extension
from .hints import Hint
from .keys import page_keys
from .metrics import MissReason, Recorder, Source
from .peers import PeerProbe
from .runner import Runner

logger = logging.getLogger(__name__)

_SOURCES: Mapping[CacheTier, Source] = {
    CacheTier.LOCAL_G2: "local",
    CacheTier.REMOTE_G2: "peer",
}


@dataclass(frozen=True)
class Peer:
    """The hint that a call follows, or why it follows none.

    Args:
        absence: what a page that is found nowhere counts as.
    """

    hint: Hint | None = None
    absence: MissReason = "absent"


@dataclass(frozen=True)
class Session:
    """One started KVCR.

    Args:
        namespaces: the namespace digest of each pool that has bytes.
        ways: how pages are found, restored and deposited.
        probe: told how each peer did.
    """

    runner: Runner
    namespaces: Mapping[str, bytes]
    ways: Extension
    probe: PeerProbe
    recorder: Recorder

    def presence(
        self, pools: Sequence[str], hashes: Sequence[str], peer: Peer
    ) -> dict[str, list[bool]]:
        """Per pool that has bytes, whether each page can be had from own DRAM or the peer.

        Raises ValueError for a pool that is not registered.
        """
        physical = [name for name in pools if not self.runner.pools.named(name).is_logical]
        keys = [key for name in physical for key in page_keys(hashes, self.namespaces[name])]
        with self.ways.stage("locate"):
            found = [tier is not None for tier in self.ways.locate(self.runner, keys, peer.hint)]
        pages = len(hashes)
        return {name: found[at * pages : (at + 1) * pages] for at, name in enumerate(physical)}

    def restore(
        self, wanted: Sequence[PoolPages], peer: Peer, prefix: Sequence[str] = ()
    ) -> dict[str, list[bool]]:
        """Fill host pages; per pool, whether each was filled. Raises ValueError like `Batch.of`.

        `prefix` names the pages before the first one, where SGLang says them.
        """
        started = time.monotonic()
        batch = self._batch(wanted, prefix)
        if not batch.blocks:
            return batch.results({})
        with self.ways.stage("locate"):
            tiers = self.ways.locate(self.runner, list(batch.blocks), peer.hint)
        # Beside a page that nobody has, KVCR would fail the pages that somebody has.
        tier_of = {
            key: tier for key, tier in zip(batch.blocks, tiers, strict=True) if tier is not None
        }
        filled: list[bool] = []
        if tier_of:
            with self.ways.stage("restore"):
                filled = self.ways.restore(self.runner, batch, tier_of, peer.hint)
        done = dict(zip(tier_of, filled, strict=True))
        seconds = time.monotonic() - started
        restored = {key: _SOURCES[tier_of[key]] for key, ok in done.items() if ok}
        self._missed(peer.absence, len(batch.blocks) - len(tier_of))
        self._missed("failed", len(tier_of) - len(restored))
        if peer.hint and CacheTier.REMOTE_G2 in tier_of.values():
            self._judge(peer.hint.source, seconds, answered="peer" in restored.values())
        restored_bytes = self._record_restored(batch, restored, seconds)
        sources = Counter(restored.values())
        logger.info(
            "kvcr restore pages=%d restored=%d from_dram=%d from_peer=%d peer=%s bytes=%d ms=%.1f "
            "pools=%s",
            len(batch.blocks),
            len(restored),
            sources["local"],
            sources["peer"],
            peer.hint.source if peer.hint else None,
            restored_bytes,
            seconds * 1000,
            ",".join(batch.keys),
        )
        return batch.results(done)

    def back_up(
        self, wanted: Sequence[PoolPages], prefix: Sequence[str] = ()
    ) -> dict[str, list[bool]]:
        """Copy host pages into the DRAM tier; per pool, whether each is held there.

        `prefix` names the pages before the first one, where SGLang says them. Raises ValueError
        like `Batch.of`.
        """
        started = time.monotonic()
        batch = self._batch(wanted, prefix)
        if not batch.blocks:
            return batch.results({})
        with self.ways.stage("deposit"):
            held = self.ways.deposit(self.runner, batch)
        results = batch.results(dict(zip(batch.blocks, held, strict=True)))
        seconds = time.monotonic() - started
        held_bytes = 0
        for pool, namespace in self.namespaces.items():
            page_bytes = self.runner.pools.named(pool).page_bytes
            if pages := results.get(pool, []).count(True):
                held_bytes += pages * page_bytes
                self.recorder.backed_up(pool, pages=pages, page_bytes=page_bytes, seconds=seconds)
            self.recorder.occupancy(
                pool,
                used_bytes=self.runner.held(namespace) * page_bytes,
                total_bytes=self.runner.tier_pages[pool] * page_bytes,
            )
        logger.info(
            "kvcr backup pages=%d held=%d bytes=%d ms=%.1f pools=%s",
            len(held),
            sum(held),
            held_bytes,
            seconds * 1000,
            ",".join(batch.keys),
        )
        return results

    def _batch(self, wanted: Sequence[PoolPages], prefix: Sequence[str]) -> Batch:
        runner = self.runner
        with self.ways.stage("plan"):
            return Batch.of(wanted, runner.pools, self.namespaces, runner.address.agent, prefix)

    def _judge(self, source: Endpoint, seconds: float, *, answered: bool) -> None:
        """Tell the probe about a peer; one that had none of the pages says so in no time."""
        if answered:
            self.probe.succeeded(source)
        elif seconds >= self.runner.deadlines.operation_seconds:
            self.probe.failed(source, seconds)

    def _missed(self, reason: MissReason, pages: int) -> None:
        if pages:
            self.recorder.missed(reason, pages=pages)

    def _record_restored(
        self, batch: Batch, restored: Mapping[BlockKey, Source], seconds: float
    ) -> int:
        """Count restored pages by pool and source; the bytes of all of them."""
        total = 0
        for pool, keys in batch.keys.items():
            page_bytes = self.runner.pools.named(pool).page_bytes
            sources = Counter(restored[key] for key in keys if key is not None and key in restored)
            for source, pages in sources.items():
                total += pages * page_bytes
                self.recorder.restored(
                    pool, source, pages=pages, page_bytes=page_bytes, seconds=seconds
                )
        return total
