# SPDX-License-Identifier: Apache-2.0
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import zmq

from kvstrata.kvcr.endpoints import Endpoint
from kvstrata.kvcr.metrics import NullRecorder
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


class Clock:
    """Time as the test says it is."""

    def __init__(self) -> None:
        self.now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


class States(NullRecorder):
    """Keeps the states that were recorded."""

    def __init__(self) -> None:
        self.seen: list[dict[str, int]] = []

    def peers(self, count_by_state: Mapping[str, int]) -> None:
        self.seen.append({state: count for state, count in count_by_state.items() if count})


class Port:
    """A port that a peer can come back to."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.endpoint = endpoint_of(server)

    @contextmanager
    def listening(self) -> Iterator[None]:
        with zmq.Context() as context, context.socket(zmq.PULL) as control:
            control.bind(str(self.endpoint))
            yield
        while not PeerProbe(timeout_seconds=1.0).is_gone(self.endpoint):
            pass


def test_a_greeting_is_remembered_for_a_moment_and_then_asked_for_again(clock: Clock) -> None:
    probe, port = PeerProbe(timeout_seconds=1.0), Port()
    with port.listening():
        assert probe.reachable(port.endpoint)
    assert probe.reachable(port.endpoint)
    clock.now += 1.5
    assert not probe.reachable(port.endpoint)


def test_a_dead_peer_is_left_alone_for_longer_each_time(clock: Clock) -> None:
    probe, port = PeerProbe(timeout_seconds=1.0), Port()
    for backoff in (2, 4, 8, 16, 32, 64, 128, 256, 300, 300):
        assert not probe.reachable(port.endpoint)
        with port.listening():
            clock.now += backoff - 0.1
            assert not probe.reachable(port.endpoint)
        clock.now += 0.2
    with port.listening():
        assert probe.reachable(port.endpoint)


def test_only_a_transfer_that_succeeds_ends_the_caution(clock: Clock) -> None:
    states = States()
    probe, port = PeerProbe(timeout_seconds=1.0, recorder=states), Port()
    assert not probe.reachable(port.endpoint)
    clock.now += 3
    with port.listening():
        assert probe.reachable(port.endpoint)
        probe.failed(port.endpoint, seconds=0.1)
        assert not probe.reachable(port.endpoint)
        clock.now += 3
        assert not probe.reachable(port.endpoint), "the second failure in a row lasts 4 s"
        clock.now += 3
        assert probe.reachable(port.endpoint)
        probe.succeeded(port.endpoint)
        probe.failed(port.endpoint, seconds=0.1)
        clock.now += 3
        assert probe.reachable(port.endpoint), "after a success, the next failure is a first one"
    assert states.seen == [
        {"closed": 1},
        {"open": 1},
        {"half_open": 1},
        {"open": 1},
        {"half_open": 1},
        {"closed": 1},
        {"open": 1},
        {"half_open": 1},
    ]


def test_a_peer_that_cost_much_time_is_left_alone_for_longer(clock: Clock) -> None:
    probe, port = PeerProbe(timeout_seconds=1.0), Port()
    with port.listening():
        assert probe.reachable(port.endpoint)
        probe.failed(port.endpoint, seconds=60)
        clock.now += 59
        assert not probe.reachable(port.endpoint)
        clock.now += 2
        assert probe.reachable(port.endpoint)


def test_failures_of_one_moment_count_as_one(clock: Clock) -> None:
    probe, port = PeerProbe(timeout_seconds=1.0), Port()
    with port.listening():
        for _ in range(10):
            probe.failed(port.endpoint, seconds=0)
        clock.now += 2.1
        assert probe.reachable(port.endpoint)


def test_one_peer_that_fails_does_not_close_the_way_to_another(
    peer: Endpoint, clock: Clock
) -> None:
    states = States()
    probe = PeerProbe(timeout_seconds=1.0, recorder=states)
    assert not probe.reachable(Port().endpoint)
    assert probe.reachable(peer)
    assert states.seen[-1] == {"open": 1, "closed": 1}


def test_a_peer_on_trial_is_tried_by_one_thread_while_the_others_are_told_no(
    silent: socket.socket, clock: Clock
) -> None:
    probe, peer = PeerProbe(timeout_seconds=30.0), endpoint_of(silent)
    probe.failed(peer, seconds=0)
    clock.now += 3
    verdicts: list[bool] = []
    trial = threading.Thread(target=lambda: verdicts.append(probe.reachable(peer)))
    trial.start()
    connection, _ = silent.accept()
    with connection:
        for _ in range(3):
            assert not probe.reachable(peer)
        connection.sendall(b"\xff" + bytes(8) + b"\x7f")
        trial.join()
    assert verdicts == [True]
    assert probe.reachable(peer)


def test_a_transfer_that_fails_during_a_trial_is_not_forgotten(
    silent: socket.socket, clock: Clock
) -> None:
    probe, peer = PeerProbe(timeout_seconds=30.0), endpoint_of(silent)
    verdicts: list[bool] = []
    trial = threading.Thread(target=lambda: verdicts.append(probe.reachable(peer)))
    trial.start()
    connection, _ = silent.accept()
    with connection:
        probe.failed(peer, seconds=60)
        connection.sendall(b"\xff" + bytes(8) + b"\x7f")
        trial.join()
    assert verdicts == [False]
    clock.now += 59
    assert not probe.reachable(peer)


def test_made_up_endpoints_do_not_fill_the_memory(clock: Clock) -> None:
    states = States()
    probe = PeerProbe(timeout_seconds=1.0, recorder=states)
    known = Port()
    probe.failed(known.endpoint, seconds=300)
    for number in range(1000):
        probe.failed(Endpoint("192.0.2.1", 1024 + number), seconds=0)
    assert states.seen[-1] == {"open": 256}
    with known.listening():
        assert not probe.reachable(known.endpoint), "what is open for longest is kept"
        clock.now += 10_000
        assert probe.reachable(known.endpoint)
    probe.reachable(Port().endpoint)
    assert sum(states.seen[-1].values()) == 2, "what nobody asked for in a long time is forgotten"


def test_a_rank_beyond_the_last_port_is_not_taken_for_another_port(peer: Endpoint) -> None:
    probe, beyond = PeerProbe(timeout_seconds=1.0), peer.of_rank(65536)
    assert probe.reachable(peer)
    assert not probe.reachable(beyond)
    assert not probe.is_gone(beyond)


def test_opening_and_closing_are_one_line_each(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    probe, port = PeerProbe(timeout_seconds=1.0), Port()
    with caplog.at_level(logging.INFO, "kvstrata"), port.listening():
        assert probe.reachable(port.endpoint)
        for _ in range(3):
            probe.failed(port.endpoint, seconds=0)
            assert not probe.reachable(port.endpoint)
        clock.now += 3
        assert probe.reachable(port.endpoint)
        for _ in range(3):
            probe.succeeded(port.endpoint)
    assert [record.getMessage() for record in caplog.records] == [
        f"kvcr peer open endpoint={port.endpoint} failures=1, it is not asked for 2 s",
        f"kvcr peer closed endpoint={port.endpoint}, it is asked as before",
    ]


def test_only_a_refused_connection_proves_that_a_peer_is_gone(silent: socket.socket) -> None:
    probe, peer = PeerProbe(timeout_seconds=0.1), endpoint_of(silent)
    assert not probe.is_gone(peer)
    assert not probe.is_gone(Endpoint("no-such-host.invalid", 1))
    silent.close()
    assert probe.is_gone(peer)
