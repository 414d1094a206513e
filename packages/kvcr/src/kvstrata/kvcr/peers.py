# SPDX-License-Identifier: Apache-2.0
"""Peers: whether the source that a hint names is worth asking."""

import re
import socket
import threading
import time
from dataclasses import dataclass, field

from .endpoints import Endpoint

_ALIVE_SECONDS = 1.0
_DEAD_SECONDS = 2.0

_GREETING_BYTES = 10
_GREETING = re.compile(rb"\xff.{8}\x7f", re.DOTALL)
"""The signature with which every ZMTP peer opens, unasked: FF, eight bytes, 7F (ZMTP 3.1)."""


@dataclass
class PeerProbe:
    """Waits for the greeting of a peer's control port before any memory is exposed to the peer.

    A stale hint to a dead peer would otherwise leave host pages exposed until the abandon
    deadline. A connection alone proves nothing: the kernel also accepts for a process that is
    frozen or ending. An answer is remembered for a moment: the pages of one request are probed
    once.
    """

    timeout_seconds: float
    _verdicts: dict[Endpoint, tuple[bool, float]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def reachable(self, peer: Endpoint) -> bool:
        """Whether the peer is alive and speaks ZMTP; blocks for twice the timeout at most."""
        now = time.monotonic()
        with self._lock:
            alive, until = self._verdicts.get(peer, (False, 0.0))
            if now < until:
                return alive
        try:
            with self._connect(peer) as connection, connection.makefile("rb") as stream:
                greeting = stream.read(_GREETING_BYTES)
            alive = _GREETING.fullmatch(greeting) is not None
        except OSError:
            alive = False
        expires = time.monotonic() + (_ALIVE_SECONDS if alive else _DEAD_SECONDS)
        with self._lock:
            self._verdicts = {p: v for p, v in self._verdicts.items() if v[1] > now}
            self._verdicts[peer] = (alive, expires)
        return alive

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

    def _connect(self, peer: Endpoint) -> socket.socket:
        return socket.create_connection((peer.host, peer.port), self.timeout_seconds)
