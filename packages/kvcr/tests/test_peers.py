# SPDX-License-Identifier: Apache-2.0
import socket
import time
from collections.abc import Iterator

import pytest

from kvstrata.kvcr.hints import Endpoint
from kvstrata.kvcr.peers import PeerProbe


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def endpoint_of(server: socket.socket) -> Endpoint:
    return Endpoint(*server.getsockname()[:2])


def test_a_listening_peer_is_reachable(listener: socket.socket) -> None:
    assert PeerProbe(timeout_seconds=1.0).reachable(endpoint_of(listener))


def test_a_closed_port_is_known_at_once(listener: socket.socket) -> None:
    peer = endpoint_of(listener)
    listener.close()
    started = time.monotonic()
    assert not PeerProbe(timeout_seconds=30.0).reachable(peer)
    assert time.monotonic() - started < 15


def test_a_name_that_does_not_resolve_is_not_reachable() -> None:
    assert not PeerProbe(timeout_seconds=1.0).reachable(Endpoint("no-such-host.invalid", 1))


def test_an_answer_is_remembered_for_a_moment_and_then_asked_for_again(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    probe, peer = PeerProbe(timeout_seconds=1.0), endpoint_of(listener)
    assert probe.reachable(peer)
    listener.close()
    assert probe.reachable(peer)
    now[0] += 1.5
    assert not probe.reachable(peer)
    with socket.create_server((peer.host, peer.port)):
        assert not probe.reachable(peer)
        now[0] += 2.5
        assert probe.reachable(peer)


def test_only_a_refused_connection_proves_that_a_peer_is_gone(listener: socket.socket) -> None:
    probe, peer = PeerProbe(timeout_seconds=0.1), endpoint_of(listener)
    assert not probe.is_gone(peer)
    assert not probe.is_gone(Endpoint("no-such-host.invalid", 1))
    listener.close()
    assert probe.is_gone(peer)
