# SPDX-License-Identifier: Apache-2.0
"""The KVCR instance of one rank, and who drains it.

KVCR moves half of its work inside ``poll_completed()``, for its own operations and for peers that
read from it, and hands out each completion once. So whoever waits for an operation drains it, a
poller does so while nobody waits, and both hand every completion to the caller it belongs to.
"""

import logging
import mmap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from kvcr.types import (
    BlockKey,
    CacheTier,
    InventoryEvent,
    MemoryRef,
    OpEntryResult,
    OpHandle,
    ReleaseHandle,
    TransferError,
)

from .dram import DramTier
from .endpoints import Endpoint
from .errors import ConfigError
from .extension import ENABLEMENT
from .hints import Hint
from .instance import Deadlines, RunnerAddress, retain, start_kvcr
from .keys import event_hash, namespace_of
from .pools import HostPools
from .preflight import check_port_free

logger = logging.getLogger(__name__)

_SHORTEST_POLL_SECONDS = 0.0001
_POLLS_PER_WAIT = 20
_IDLE_POLL_SECONDS = 0.008
_SOURCE_CHECK_SECONDS = 1.0
_RELEASE_SECONDS = 5.0

Blocks = Mapping[BlockKey, list[MemoryRef]]
Results = Mapping[BlockKey, OpEntryResult]


class Runner:
    """Deposits pages into KVCR's DRAM and delivers them from there or from a peer.

    Args:
        address: where peers reach this rank.
        pools: the host pools whose pages operations may name.
        dram_bytes: DRAM for KVCR's own copies.
        deadlines: see `Deadlines`.
        is_gone: whether the process behind a control endpoint has certainly ended.
        end_worker: called when native code may still write to host pages that were given up. It
            must end the process: going on would hand the pages to another request.
        allocate: gives the memory of the DRAM tier.

    Raises ConfigError for a DRAM budget that is too small or too large, StartupError when KVCR does
    not come up.
    """

    def __init__(
        self,
        address: RunnerAddress,
        pools: HostPools,
        dram_bytes: int,
        deadlines: Deadlines,
        is_gone: Callable[[Endpoint], bool],
        end_worker: Callable[[str], None],
        allocate: Callable[[int], mmap.mmap] = ENABLEMENT.allocate,
    ) -> None:
        self.address = address
        self.pools = pools
        self.tier_pages = pools.tier_pages(dram_bytes)
        self.deadlines = deadlines
        self._is_gone = is_gone
        self._end_worker = end_worker
        self._dram = DramTier(pools.tier_bytes(dram_bytes), deadlines.startup_seconds, allocate)
        block_bytes = pools.block_pools
        self._parts = {
            name: (address, size, block_bytes[name]) for name, address, size in self._dram.pools
        }
        self._lock = threading.RLock()
        self._closing = False
        self._stopped = False
        self._pending: dict[OpHandle, Future[Results]] = {}
        self._claimants: set[Future[None]] = set()
        self._uncertain: dict[OpHandle, float] = {}
        self._held: Counter[bytes] = Counter()
        self._hint_serial = 0
        self._kvcr = start_kvcr(
            address,
            pools,
            self._dram,
            deadlines,
            self._on_resilience_event,
            self._on_inventory_event,
        )
        self._poller = threading.Thread(target=self._serve, name="kvcr-poller", daemon=True)
        self._poller.start()

    @property
    def alive(self) -> bool:
        """Whether operations can be started."""
        return not (self._stopped or self._closing)

    def query(self, keys: Sequence[BlockKey], hint: Hint | None) -> list[CacheTier | None]:
        """Where each page can be had from: own DRAM, a peer by the hint, or nowhere.

        A page on its way to own DRAM counts as there: whoever delivers it waits for it.
        """
        with self._lock:
            if not self.alive:
                return [None] * len(keys)
            with self._hinted(keys, hint) as name:
                found = self._kvcr.query(keys, name)
        return [tier for _, tier in found]

    def deposit(self, blocks: Blocks) -> list[bool]:
        """Copy host pages into KVCR's DRAM; whether each page is held there afterwards."""
        return _successes(blocks, self._run(lambda: self._kvcr.deposit(blocks)))

    def deliver(self, blocks: Blocks, hint: Hint | None) -> list[bool]:
        """Fill host pages from own DRAM or the hint's source; whether each was filled.

        Returns once no native code touches the pages any more.
        """
        with self._hinted(list(blocks), hint) as name:
            source = hint.source if hint and name else None
            results = self._run(lambda: self._kvcr.deliver(blocks, name), source)
        return _successes(blocks, results)

    @contextmanager
    def claimed(
        self, keys: Sequence[BlockKey], layout: Sequence[str], hint: Hint | None
    ) -> Iterator[Mapping[BlockKey, Sequence[int]]]:
        """Keep pages of one layout in own DRAM, brought there from the hint's source if need be.

        Exposes no host page. Gives the addresses of each page that is there now, component by
        component; its bytes stay there until the context ends, and `close` waits for that.
        """
        ended: Future[None] = Future()
        claims: list[ReleaseHandle] = []
        with self._lock:
            self._claimants.add(ended)
        try:
            with self._hinted(keys, hint) as name:
                results = self._run(lambda: self._kvcr.fetch(keys, name, list(layout)))
            claims += [each.release_handle for each in results.values() if each.release_handle]
            yield {
                key: [self._address(block) for block in result.descriptors]
                for key, result in results.items()
                if result.success and result.descriptors
            }
        finally:
            try:
                with self._lock:
                    self._claimants.discard(ended)
                    if claims and not self._stopped:
                        self._kvcr.release(claims)
            finally:
                ended.set_result(None)

    def _address(self, block: MemoryRef) -> int:
        """Where a block lies that KVCR names by its place in a part of the tier."""
        start, part_bytes, block_bytes = self._parts[block.label.partition(":")[0]]
        offset: int = block.element_index * block_bytes
        if not 0 <= offset <= part_bytes - block_bytes:
            raise RuntimeError(f"KVCR names a block outside of the DRAM tier: {block}")
        return start + offset

    def align(self, keys: Sequence[BlockKey]) -> None:
        """Let own pages count as used now and together: of them, the last is dropped first."""
        with self._lock:
            if self.alive:
                self._kvcr.align_sequence(list(keys), use_current_time=True)

    def capacity(self, layout: Sequence[str]) -> int:
        """How many pages of a layout the whole DRAM tier holds at most."""
        parts = Counter(label.partition(":")[0] for label in layout)
        slots = {name: size // block_bytes for name, (_, size, block_bytes) in self._parts.items()}
        return min(slots[name] // count for name, count in parts.items())

    def held(self, namespace: bytes) -> int:
        """How many pages of a namespace the DRAM tier holds."""
        return self._held[namespace]

    def close(self) -> None:
        """Stop; pages stay registered and ports taken until this returns. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            awaited: list[Future[Results] | Future[None]] = [
                *self._pending.values(),
                *self._claimants,
            ]
        for future in awaited:
            future.exception()
        self._poller.join()
        with self._lock:
            self._stopped = True
        try:
            self._kvcr.close()
        except Exception as error:  # noqa: BLE001 - KVCR re-raises what its threads met
            retain(self._kvcr, self._dram)
            logger.error("kvcr did not close cleanly, its memory is kept: %s", error)
            return
        # ZeroMQ closes its listener on a thread of its own, some time after it was told to.
        deadline = time.monotonic() + _RELEASE_SECONDS
        while not self._ports_are_free() and time.monotonic() < deadline:
            time.sleep(_IDLE_POLL_SECONDS)

    def _ports_are_free(self) -> bool:
        address = self.address
        try:
            check_port_free("control_port", address.bind_host, address.control_port)
            check_port_free("nixl_port", "", address.nixl_port)
        except ConfigError:
            return False
        return True

    @contextmanager
    def _hinted(self, keys: Sequence[BlockKey], hint: Hint | None) -> Iterator[str | None]:
        """A name under which KVCR knows the hint for some of these pages, or None; forgotten after.

        Only the pages of this call are named: KVCR would ask the source for any other as well.
        """
        hashes = {h for h in map(event_hash, keys) if h in hint.hashes} if hint else set()
        if hint is None or not hashes:
            yield None
            return
        with self._lock:
            self._hint_serial += 1
            name = f"{self.address.agent}/{self._hint_serial}"
            if self.alive:
                self._kvcr.submit_hint(hint.fetch_message(hashes), name)
        try:
            yield name
        finally:
            with self._lock:
                if not self._stopped:
                    self._kvcr.discard_hint(name)

    def _run(self, start: Callable[[], OpHandle], source: Endpoint | None = None) -> Results:
        """Start an operation and wait for its end; empty if it cannot be started."""
        future: Future[Results] = Future()
        with self._lock:
            if not self.alive:
                return {}
            handle = start()
            self._pending[handle] = future
        started = check_at = time.monotonic()
        source_died = False
        # What KVCR can answer without moving a byte is there at once.
        self._drain()
        while not future.done():
            waited = time.monotonic() - started
            pause = max(_SHORTEST_POLL_SECONDS, waited / _POLLS_PER_WAIT)
            time.sleep(min(pause, _IDLE_POLL_SECONDS))
            self._drain()
            if source is not None and time.monotonic() >= check_at + _SOURCE_CHECK_SECONDS:
                source_died = source_died or self._is_gone(source)
                if source_died:
                    self._settle(handle)
                check_at = time.monotonic()
        return future.result()

    def _settle(self, handle: OpHandle) -> None:
        """Let go of an uncertain operation: past the abandon deadline, of a source that ended."""
        with self._lock:
            if self._uncertain.pop(handle, None) is not None:
                self._pending.pop(handle).set_result({})

    def _serve(self) -> None:
        """Drain KVCR for peers and for whoever waits, until it is closed or fails."""
        while not self._stopped and (self._pending or not self._closing):
            time.sleep(_IDLE_POLL_SECONDS)
            self._drain()
            self._end_if_uncertain()

    def _drain(self) -> None:
        try:
            with self._lock:
                if not self._stopped:
                    for handle, results in self._kvcr.poll_completed():
                        self._complete(handle, results)
        except Exception as error:  # noqa: BLE001 - KVCR re-raises what its threads met
            self._fail(error)

    def _complete(self, handle: OpHandle, results: Results) -> None:
        # A failed operation whose writes may still land keeps its caller, and with it the pages,
        # until they have come to rest.
        if handle not in self._uncertain and handle in self._pending:
            self._pending.pop(handle).set_result(results)

    def _on_resilience_event(self, event: Exception) -> None:
        # Runs inside poll_completed(), under the lock.
        logger.warning("kvcr: %s", event)
        if not isinstance(event, TransferError):
            return
        owners = set((event.source_owners or {}).values())
        if "framework" not in owners | {event.destination_owner}:
            return
        if event.state == "uncertain":
            grace = self.deadlines.abandon_seconds
            self._uncertain[event.op_handle] = time.monotonic() + grace
        elif self._uncertain.pop(event.op_handle, None) is not None:
            self._complete(event.op_handle, {})

    def _on_inventory_event(self, event: InventoryEvent) -> None:
        # Runs inside calls of KVCR, under the lock.
        if event.tier is CacheTier.LOCAL_G2:
            change = Counter(map(namespace_of, event.keys))
            if event.removed:
                self._held.subtract(change)
            else:
                self._held.update(change)

    def _end_if_uncertain(self) -> None:
        now = time.monotonic()
        with self._lock:
            expired = [handle for handle, until in self._uncertain.items() if until <= now]
        if expired:
            self._end_worker(
                f"host pages of {len(expired)} restore(s) may still be written by a peer that "
                "stopped answering; ending this worker before they are used again"
            )

    def _fail(self, error: BaseException) -> None:
        retain(self._kvcr, self._dram)
        with self._lock:
            self._stopped = True
            pending, self._pending = self._pending, {}
        logger.error("kvcr failed, everything is a miss from now on: %s", error)
        if pending:
            self._end_worker(
                f"KVCR failed with {len(pending)} transfer(s) of host pages in flight: {error}"
            )
        for future in pending.values():
            future.set_result({})


def _successes(blocks: Blocks, results: Results) -> list[bool]:
    return [key in results and results[key].success for key in blocks]
