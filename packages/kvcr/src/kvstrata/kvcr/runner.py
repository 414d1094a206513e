# SPDX-License-Identifier: Apache-2.0
"""The KVCR instance of one rank and the only thread that drains it.

KVCR moves half of its work inside ``poll_completed()``, for its own operations and for peers that
read from it, and hands out each completion once. So one poller drains it, also while nothing is
asked of it, and hands every completion to the caller that started the operation.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from kvcr import KVCR, KVCRBindings
from kvcr.config import KVCRBackendConfigs, KVCRConfig, LocalDramOptions
from kvcr.control_channels import ZmqPeerControlChannel
from kvcr.types import (
    BlockKey,
    CacheTier,
    MemoryRef,
    OpEntryResult,
    OpHandle,
    PinRequestId,
    PinResult,
    QueryStatus,
    TransferError,
)

from .dram import DramTier
from .endpoints import Endpoint
from .errors import StartupError
from .hints import Hint
from .keys import PageKeys, event_hash
from .layout import HostPages

logger = logging.getLogger(__name__)

_BUSY_POLL_SECONDS = 0.0005
_IDLE_POLL_SECONDS = 0.008
_SOURCE_CHECK_SECONDS = 1.0

_retained: list[object] = []
"""Memory that native code may still touch; kept until the process ends."""

Blocks = Mapping[BlockKey, list[MemoryRef]]
Results = Mapping[BlockKey, OpEntryResult]


@dataclass(frozen=True)
class RunnerAddress:
    """Where one rank is reached."""

    agent: str
    bind_host: str
    advertise_host: str
    control_port: int
    nixl_port: int


@dataclass(frozen=True)
class Deadlines:
    """When KVCR cancels an operation, when it gives a cancelled one up, and how long its memory may
    take to become resident.
    """

    operation_seconds: float
    abandon_seconds: float
    startup_seconds: float = 300.0


class _NoFrameworkPages:
    """Declines every request to pin a host page: only KVCR's own DRAM is offered to peers."""

    def __init__(self) -> None:
        self._last = 0
        self._declined: list[tuple[PinRequestId, PinResult]] = []

    def request(self, keys: Iterable[BlockKey]) -> PinRequestId:
        del keys
        self._last += 1
        self._declined.append((PinRequestId(self._last), None))
        return PinRequestId(self._last)

    def poll(self) -> Iterable[tuple[PinRequestId, PinResult]]:
        declined, self._declined = self._declined, []
        return declined


class Runner:
    """Deposits pages into KVCR's DRAM and delivers them from there or from a peer.

    Args:
        address: where peers reach this rank.
        pages: the host pages that operations may name.
        dram_bytes: DRAM for KVCR's own copies.
        deadlines: see `Deadlines`.
        is_gone: whether the process behind a control endpoint has certainly ended.
        end_worker: called when native code may still write to host pages that were given up. It
            must end the process: going on would hand the pages to another request.

    Raises StartupError when KVCR does not come up.
    """

    def __init__(
        self,
        address: RunnerAddress,
        pages: HostPages,
        dram_bytes: int,
        deadlines: Deadlines,
        is_gone: Callable[[Endpoint], bool],
        end_worker: Callable[[str], None],
    ) -> None:
        self.address = address
        self.pages = pages
        self._deadlines = deadlines
        self._is_gone = is_gone
        self._end_worker = end_worker
        self._dram = DramTier(pages.dram_pools(dram_bytes), deadlines.startup_seconds)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._failure: BaseException | None = None
        self._pending: dict[OpHandle, Future[Results]] = {}
        self._uncertain: dict[OpHandle, float] = {}
        self._hint_serial = 0
        self._kvcr = self._start()
        self._poller = threading.Thread(target=self._drain, name="kvcr-poller", daemon=True)
        self._poller.start()

    @property
    def alive(self) -> bool:
        """Whether operations can be started."""
        return self._failure is None and not self._closing

    def query(self, keys: Sequence[BlockKey], hint: Hint | None) -> list[CacheTier | None]:
        """Where each page can be had from now: own DRAM, a peer by the hint, or nowhere."""
        with self._lock:
            if not self.alive:
                return [None] * len(keys)
            name = self._submit_hint(keys, hint)
            try:
                found = self._kvcr.query(keys, name)
            finally:
                self._discard_hint(name)
        usable = (QueryStatus.HIT, QueryStatus.FETCHABLE)
        return [tier if status in usable else None for status, tier in found]

    def deposit(self, blocks: Blocks) -> list[bool]:
        """Copy host pages into KVCR's DRAM; whether each page is held there afterwards."""
        return self._run(blocks, lambda: self._kvcr.deposit(blocks))

    def deliver(self, blocks: Blocks, hint: Hint | None) -> list[bool]:
        """Fill host pages from own DRAM or the hint's source; whether each was filled.

        Returns once no native code touches the pages any more.
        """
        with self._lock:
            name = self._submit_hint(list(blocks), hint)
        try:
            source = hint.source if hint and name else None
            return self._run(blocks, lambda: self._kvcr.deliver(blocks, name), source)
        finally:
            with self._lock:
                self._discard_hint(name)

    def close(self) -> None:
        """Stop; pages stay registered until this returns. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            pending = list(self._pending.values())
        for future in pending:
            future.exception()
        self._wake.set()
        self._poller.join()
        try:
            self._kvcr.close()
        except Exception as error:  # noqa: BLE001 - KVCR re-raises what its threads met
            _retained.append((self._kvcr, self._dram))
            logger.error("kvcr did not close cleanly, its memory is kept: %s", error)

    def _start(self) -> KVCR:
        pins = _NoFrameworkPages()
        address = self.address
        try:
            return KVCR(
                KVCRConfig(
                    nixl_agent_name=address.agent,
                    pool_layouts=list(self.pages.block_pools.items()),
                    operation_timeout_ms=round(self._deadlines.operation_seconds * 1000),
                    abandon_timeout_ms=round(self._deadlines.abandon_seconds * 1000),
                    nixl_listen_port=address.nixl_port,
                ),
                KVCRBindings(
                    request_pin=pins.request,
                    poll_pin_results=pins.poll,
                    release_pin=lambda handle: True,
                    framework_control=ZmqPeerControlChannel(
                        address.bind_host, address.control_port, address.advertise_host
                    ),
                    key_adapter=PageKeys(),
                    on_resilience_event=self._on_resilience_event,
                ),
                KVCRBackendConfigs(
                    framework_regions=self.pages.regions(),
                    local_dram=LocalDramOptions(pools=self._dram.pools),
                ),
            )
        except Exception as error:  # KVCR raises what its progress thread met, of any type
            _retained.append(self._dram)
            raise StartupError(f"KVCR did not start on {address}: {error}") from error

    def _submit_hint(self, keys: Sequence[BlockKey], hint: Hint | None) -> str | None:
        if hint is None or not self.alive:
            return None
        hashes = [h for h in map(event_hash, keys) if h in hint.hashes]
        if not hashes:
            return None
        self._hint_serial += 1
        name = f"{self.address.agent}/{self._hint_serial}"
        self._kvcr.submit_hint(hint.fetch_message(hashes), name)
        return name

    def _discard_hint(self, name: str | None) -> None:
        if name is not None:
            self._kvcr.discard_hint(name)

    def _run(
        self, blocks: Blocks, start: Callable[[], OpHandle], source: Endpoint | None = None
    ) -> list[bool]:
        future: Future[Results] = Future()
        with self._lock:
            if not self.alive:
                return [False] * len(blocks)
            handle = start()
            self._pending[handle] = future
        self._wake.set()
        source_died = False
        while True:
            try:
                results = future.result(_SOURCE_CHECK_SECONDS if source else None)
            except FutureTimeoutError:
                source_died = source_died or (source is not None and self._is_gone(source))
                if source_died:
                    self._settle(handle)
            else:
                return [key in results and results[key].success for key in blocks]

    def _settle(self, handle: OpHandle) -> None:
        """Let go of an uncertain operation: past the abandon deadline, of a source that ended."""
        with self._lock:
            if self._uncertain.pop(handle, None) is not None:
                self._pending.pop(handle).set_result({})

    def _drain(self) -> None:
        while not self._closing or self._pending:
            self._wake.wait(_BUSY_POLL_SECONDS if self._pending else _IDLE_POLL_SECONDS)
            self._wake.clear()
            try:
                with self._lock:
                    for handle, results in self._kvcr.poll_completed():
                        self._complete(handle, results)
            except Exception as error:  # noqa: BLE001 - KVCR re-raises what its threads met
                self._fail(error)
                return
            self._end_if_uncertain()

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
            grace = self._deadlines.abandon_seconds
            self._uncertain[event.op_handle] = time.monotonic() + grace
        elif self._uncertain.pop(event.op_handle, None) is not None:
            self._complete(event.op_handle, {})

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
        _retained.append((self._kvcr, self._dram))
        with self._lock:
            self._failure = error
            pending, self._pending = self._pending, {}
        logger.error("kvcr failed, everything is a miss from now on: %s", error)
        if pending:
            self._end_worker(
                f"KVCR failed with {len(pending)} transfer(s) of host pages in flight: {error}"
            )
        for future in pending.values():
            future.set_result({})
