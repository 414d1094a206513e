# SPDX-License-Identifier: Apache-2.0
"""Peers: whether the source that a hint names is worth asking."""

import socket
import threading
import time
from dataclasses import dataclass, field

from .hints import Endpoint

_ALIVE_SECONDS = 1.0
_DEAD_SECONDS = 2.0


@dataclass
class PeerProbe:
    """Asks a peer's control port for a connection before any memory is exposed to the peer.

    A stale hint to a dead peer would otherwise leave host pages exposed until the abandon
    deadline. An answer is remembered for a moment: the pages of one request are probed once.
    """

    timeout_seconds: float
    _verdicts: dict[Endpoint, tuple[bool, float]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def reachable(self, peer: Endpoint) -> bool:
        """Whether the peer accepts connections; blocks for the timeout at most."""
        now = time.monotonic()
        with self._lock:
            alive, until = self._verdicts.get(peer, (False, 0.0))
            if now < until:
                return alive
        try:
            self._connect(peer)
            alive = True
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
            self._connect(peer)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    def _connect(self, peer: Endpoint) -> None:
        socket.create_connection((peer.host, peer.port), self.timeout_seconds).close()
