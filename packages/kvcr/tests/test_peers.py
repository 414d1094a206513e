# SPDX-License-Identifier: Apache-2.0
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from kvstrata.kvcr.endpoints import Endpoint
from kvstrata.kvcr.peers import PeerProbe


@pytest.fixture
def peer() -> Iterator[Endpoint]:
    """A control port as KVCR opens one."""
    with zmq.Context() as context, context.socket(zmq.PULL) as control:
        yield Endpoint("127.0.0.1", control.bind_to_random_port("tcp://127.0.0.1"))


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that accepts and says nothing, as that of a frozen process does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def endpoint_of(server: socket.socket) -> Endpoint:
    return Endpoint(*server.getsockname()[:2])


def test_a_peer_that_greets_is_reachable(peer: Endpoint) -> None:
    assert PeerProbe(timeout_seconds=1.0).reachable(peer)


def test_a_port_that_accepts_and_never_greets_is_not_reachable(silent: socket.socket) -> None:
    assert not PeerProbe(timeout_seconds=0.1).reachable(endpoint_of(silent))


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request", b"\xff" * 10, b"\xff\x7f"])
def test_a_port_that_greets_in_another_way_is_not_reachable(
    silent: socket.socket, greeting: bytes
) -> None:
    def answer() -> None:
        connection, _ = silent.accept()
        with connection:
            connection.sendall(greeting)

    thread = threading.Thread(target=answer)
    thread.start()
    assert not PeerProbe(timeout_seconds=1.0).reachable(endpoint_of(silent))
    thread.join()


def test_a_closed_port_is_known_at_once(silent: socket.socket) -> None:
    peer = endpoint_of(silent)
    silent.close()
    started = time.monotonic()
    assert not PeerProbe(timeout_seconds=30.0).reachable(peer)
    assert time.monotonic() - started < 15


def test_a_name_that_does_not_resolve_is_not_reachable() -> None:
    assert not PeerProbe(timeout_seconds=1.0).reachable(Endpoint("no-such-host.invalid", 1))


def test_an_answer_is_remembered_for_a_moment_and_then_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    probe = PeerProbe(timeout_seconds=1.0)
    with zmq.Context() as context:
        with context.socket(zmq.PULL) as control:
            port = control.bind_to_random_port("tcp://127.0.0.1")
            peer = Endpoint("127.0.0.1", port)
            assert probe.reachable(peer)
        while not probe.is_gone(peer):
            pass
        assert probe.reachable(peer)
        now[0] += 1.5
        assert not probe.reachable(peer)
        with context.socket(zmq.PULL) as control:
            control.bind(f"tcp://127.0.0.1:{port}")
            assert not probe.reachable(peer)
            now[0] += 2.5
            assert probe.reachable(peer)


def test_only_a_refused_connection_proves_that_a_peer_is_gone(silent: socket.socket) -> None:
    probe, peer = PeerProbe(timeout_seconds=0.1), endpoint_of(silent)
    assert not probe.is_gone(peer)
    assert not probe.is_gone(Endpoint("no-such-host.invalid", 1))
    silent.close()
    assert probe.is_gone(peer)
