# SPDX-License-Identifier: Apache-2.0
"""Peers: whether the source that a hint names is worth asking."""

import logging
import re
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, get_args

from .endpoints import Endpoint
from .metrics import NullRecorder, Recorder

logger = logging.getLogger(__name__)

PeerState = Literal["closed", "open", "half_open"]
"""State of the circuit breaker of one peer.

closed: the peer is asked. open: it failed and is left alone for a while. half_open: that while is
over and it is asked again, but whether it is well is known only once a transfer has succeeded.
"""

_GREETED_SECONDS = 1.0
_FIRST_BACKOFF_SECONDS = 2.0
_LONGEST_BACKOFF_SECONDS = 300.0
_FORGOTTEN_SECONDS = 600.0
_MOST_PEERS = 256
"""Hints are made by clients, so the number of peers that they name has no other bound."""

_LAST_PORT = 65535

_GREETING_BYTES = 10
_GREETING = re.compile(rb"\xff.{8}\x7f", re.DOTALL)
"""The signature with which every ZMTP peer opens, unasked: FF, eight bytes, 7F (ZMTP 3.1)."""


@dataclass
class _Circuit:
    """What is known of one peer; `until` is the time up to which it is not probed again."""

    state: PeerState = "closed"
    failures: int = 0
    until: float = 0.0
    probing: bool = False

    def is_open(self) -> bool:
        return self.state == "open"

    def fail(self, seconds: float) -> float:
        """Open for longer with each failure in a row; returns for how long, in seconds."""
        self.failures += 1
        backoff = max(_FIRST_BACKOFF_SECONDS, seconds) * 2.0 ** min(self.failures - 1, 16)
        backoff = min(backoff, _LONGEST_BACKOFF_SECONDS)
        self.state, self.until = "open", time.monotonic() + backoff
        return backoff


@dataclass
class PeerProbe:
    """Waits for the greeting of a peer's control port before any memory is exposed to the peer,
    and leaves a peer alone that failed: a circuit breaker for each endpoint.

    A stale hint to a dead peer would otherwise leave host pages exposed until the abandon
    deadline. A connection alone proves nothing: the kernel also accepts for a process that is
    frozen or ending. A greeting is remembered for a moment: the pages of one request are probed
    once.
    """

    timeout_seconds: float
    recorder: Recorder = field(default_factory=NullRecorder)
    _circuits: dict[Endpoint, _Circuit] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def reachable(self, peer: Endpoint) -> bool:
        """Whether the peer is to be asked: it is alive, speaks ZMTP and did not fail just now.

        Blocks for twice the timeout at most. While one thread tries a peer that has failed, all
        others are told no.
        """
        with self._lock:
            circuit = self._circuit(peer)
            if time.monotonic() < circuit.until:
                return not circuit.is_open()
            if circuit.is_open():
                circuit.state = "half_open"
                self._publish()
            if circuit.state == "half_open" and circuit.probing:
                return False
            circuit.probing = True
        greeted = self._greets(peer)
        with self._lock:
            circuit.probing = False
            if not greeted:
                self._fail(peer, circuit, 0.0)
            elif not circuit.is_open():
                circuit.until = time.monotonic() + _GREETED_SECONDS
            return not circuit.is_open()

    def succeeded(self, peer: Endpoint) -> None:
        """Take note that a transfer from this peer went as it should, whatever pages it had."""
        with self._lock:
            circuit = self._circuits.get(peer)
            if circuit is None or circuit.state == "closed":
                return
            circuit.state, circuit.failures = "closed", 0
            circuit.until = time.monotonic() + _GREETED_SECONDS
            self._publish()
        logger.info("kvcr peer closed endpoint=%s, it is asked as before", peer)

    def failed(self, peer: Endpoint, seconds: float) -> None:
        """Take note that a transfer from this peer failed after so many seconds.

        The more time a peer has cost, the longer it is left alone.
        """
        with self._lock:
            self._fail(peer, self._circuit(peer), seconds)

    def is_gone(self, peer: Endpoint) -> bool:
        """Whether the peer's host says that nothing listens there, so that its process has ended.

        False where nothing is known: a frozen process or an unreachable host may come back.
        """
        try:
            self._connect(peer).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    def _circuit(self, peer: Endpoint) -> _Circuit:
        found = self._circuits.get(peer)
        if found is not None:
            return found
        now = time.monotonic()
        self._circuits = {
            known: circuit
            for known, circuit in self._circuits.items()
            if circuit.probing or now < circuit.until + _FORGOTTEN_SECONDS
        }
        while len(self._circuits) >= _MOST_PEERS:
            del self._circuits[min(self._circuits, key=lambda known: self._circuits[known].until)]
        made = self._circuits[peer] = _Circuit()
        self._publish()
        return made

    def _fail(self, peer: Endpoint, circuit: _Circuit, seconds: float) -> None:
        if circuit.is_open():
            return
        backoff = circuit.fail(seconds)
        self._publish()
        logger.warning(
            "kvcr peer open endpoint=%s failures=%d, it is not asked for %.0f s",
            peer,
            circuit.failures,
            backoff,
        )

    def _publish(self) -> None:
        count = Counter(circuit.state for circuit in self._circuits.values())
        self.recorder.peers({state: count[state] for state in get_args(PeerState)})

    def _greets(self, peer: Endpoint) -> bool:
        try:
            with self._connect(peer) as connection, connection.makefile("rb") as stream:
                greeting = stream.read(_GREETING_BYTES)
        except OSError:
            return False
        return _GREETING.fullmatch(greeting) is not None

    def _connect(self, peer: Endpoint) -> socket.socket:
        # The system would take the port modulo 65536: another service than the one that was named.
        if peer.port > _LAST_PORT:
            raise OSError(f"no such port: {peer.port}")
        return socket.create_connection((peer.host, peer.port), self.timeout_seconds)
