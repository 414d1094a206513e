# SPDX-License-Identifier: Apache-2.0
"""What the store does between two starts of KVCR: query, restore and back up pages of its pools."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

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
        of_pools = [page_keys(hashes, self.namespaces[name]) for name in physical]
        keys = list(chain.from_iterable(of_pools))
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
            return batch.results(())
        with self.ways.stage("locate"):
            tiers = self.ways.locate(self.runner, list(batch.blocks), peer.hint)
        # Beside a page that nobody has, KVCR would fail the pages that somebody has.
        found = {
            key: tier for key, tier in zip(batch.blocks, tiers, strict=True) if tier is not None
        }
        filled: list[bool] = []
        if found:
            with self.ways.stage("restore"):
                filled = self.ways.restore(self.runner, batch, found, peer.hint)
        seconds = time.monotonic() - started
        restored = {key: tier for (key, tier), ok in zip(found.items(), filled, strict=True) if ok}
        sources = _by_source(list(restored.values()))
        self._missed(peer.absence, len(batch.blocks) - len(found))
        self._missed("failed", len(found) - len(restored))
        if peer.hint and CacheTier.REMOTE_G2 in found.values():
            self._judge(peer.hint.source, seconds, answered=sources["peer"] > 0)
        restored_bytes = self._record_restored(batch, restored, seconds)
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
        return batch.results(restored)

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
            return batch.results(())
        with self.ways.stage("deposit"):
            held = self.ways.deposit(self.runner, batch)
        results = batch.results({key for key, ok in zip(batch.blocks, held, strict=True) if ok})
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
        self, batch: Batch, restored: Mapping[BlockKey, CacheTier], seconds: float
    ) -> int:
        """Count restored pages by pool and source; the bytes of all of them."""
        total = 0
        for pool, keys in batch.keys.items():
            page_bytes = self.runner.pools.named(pool).page_bytes
            tiers = [restored.get(key) for key in keys if key is not None]
            for source, pages in _by_source(tiers).items():
                if pages:
                    total += pages * page_bytes
                    self.recorder.restored(
                        pool, source, pages=pages, page_bytes=page_bytes, seconds=seconds
                    )
        return total


def _by_source(tiers: Sequence[CacheTier | None]) -> dict[Source, int]:
    """How many pages came from each source."""
    return {source: tiers.count(tier) for tier, source in _SOURCES.items()}
