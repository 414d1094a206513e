# SPDX-License-Identifier: Apache-2.0
"""A TCP relay in front of a source's control port, where faults of the network are made."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal

Address = tuple[str, int]
Mode = Literal["forward", "silent", "cut"]

_CHUNK_BYTES = 65536


class Relay:
    """Accepts at `front` and forwards to `back` while it is open.

    `mode` is of new connections: forwarded, accepted and left without a word, or accepted and cut.
    `delay_s` holds back every chunk in either direction.
    """

    def __init__(self, front: Address, back: Address) -> None:
        self.mode: Mode = "forward"
        self.delay_s = 0.0
        self.front, self.back = front, back
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self._on_request: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> "Relay":
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Accept connections; does nothing if it is open."""
        if self._listener is None:
            self._listener = socket.create_server(self.front)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Refuse new connections and cut those that there are."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self.drop()

    def drop(self) -> None:
        """Cut every connection."""
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            _end(connection)

    def on_next_request(self, act: Callable[[], None]) -> None:
        """Call `act` once, as soon as the next bytes from a target were forwarded."""
        self._on_request = act

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                target, _ = listener.accept()
                self._keep(target)
                if self.mode == "cut":
                    self.drop()
                elif self.mode == "forward":
                    self._connect(target)

    def _connect(self, target: socket.socket) -> None:
        try:
            source = socket.create_connection(self.back, timeout=5.0)
        except OSError:
            _end(target)
            return
        source.settimeout(None)
        self._keep(source)
        for pump in ((target, source, True), (source, target, False)):
            threading.Thread(target=self._pump, args=pump, daemon=True).start()

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.append(connection)

    def _pump(self, giver: socket.socket, taker: socket.socket, requests: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := giver.recv(_CHUNK_BYTES):
                time.sleep(self.delay_s)
                taker.sendall(chunk)
                if requests and self._on_request is not None:
                    act, self._on_request = self._on_request, None
                    act()
        _end(giver)
        _end(taker)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
