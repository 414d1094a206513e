# SPDX-License-Identifier: Apache-2.0
"""What a target sees of its source through the relay."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from faults.relay import Relay

from kvstrata_host.ports import free_ports

LOOPBACK = "127.0.0.1"


@pytest.fixture
def relay() -> Iterator[Relay]:
    """In front of a source that answers each byte with the same one."""
    front, back = free_ports(2)

    def echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(100):
                connection.sendall(data)

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=echo, args=(connection,), daemon=True).start()

    with socket.create_server((LOOPBACK, back)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with Relay((LOOPBACK, front), (LOOPBACK, back)) as relay:
            yield relay
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def target(relay: Relay) -> Iterator[socket.socket]:
    with socket.create_connection(relay.front, timeout=5.0) as connection:
        yield connection


def answer(connection: socket.socket) -> bytes:
    connection.sendall(b"x")
    return connection.recv(100)


def test_an_open_relay_forwards_both_ways(relay: Relay) -> None:
    with target(relay) as first, target(relay) as second:
        assert answer(first) == answer(second) == b"x"


def test_a_closed_one_refuses_and_cuts_until_it_is_opened_again(relay: Relay) -> None:
    with target(relay) as connection:
        assert answer(connection) == b"x"
        relay.close()
        assert not connection.recv(100)
    with pytest.raises(ConnectionRefusedError), target(relay):
        pass
    relay.open()
    with target(relay) as connection:
        assert answer(connection) == b"x"


def test_a_silent_one_accepts_and_says_nothing(relay: Relay) -> None:
    relay.mode = "silent"
    with target(relay) as connection:
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            answer(connection)


def test_a_cutting_one_ends_each_new_connection(relay: Relay) -> None:
    relay.mode = "cut"
    with target(relay) as connection, contextlib.suppress(ConnectionResetError):
        assert not connection.recv(100)


def test_a_slow_one_holds_back_what_it_forwards(relay: Relay) -> None:
    relay.delay_s = 0.3
    with target(relay) as connection:
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            answer(connection)
        connection.settimeout(5.0)
        assert connection.recv(100) == b"x"


def test_only_the_next_request_is_acted_upon(relay: Relay) -> None:
    acted: list[str] = []
    with target(relay) as connection:
        answer(connection)
        relay.on_next_request(lambda: acted.append("once"))
        answer(connection)
        answer(connection)
    assert acted == ["once"]
