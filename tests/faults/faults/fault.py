# SPDX-License-Identifier: Apache-2.0
"""The faults: each is a block in which it lasts, and after which it is healed."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from demo.replica import Replica

from .relay import Relay


@dataclass(frozen=True)
class Stage:
    """What faults are made on. `refill` gives a source that lost its memory every prompt again."""

    source: Replica
    relay: Relay
    refill: Callable[[], None]
    random: random.Random

    def moment(self) -> None:
        """Wait for a part of a transfer's time."""
        time.sleep(self.random.uniform(0.0, 0.03))


Fault = Callable[[Stage], AbstractContextManager[None]]


@contextlib.contextmanager
def port_closed(stage: Stage) -> Iterator[None]:
    """The control port refuses connections."""
    stage.relay.close()
    yield
    stage.relay.open()


@contextlib.contextmanager
def port_silent(stage: Stage) -> Iterator[None]:
    """The control port accepts new connections and says nothing."""
    stage.relay.mode = "silent"
    stage.relay.drop()
    yield
    stage.relay.mode = "forward"
    stage.relay.drop()


@contextlib.contextmanager
def port_cuts(stage: Stage) -> Iterator[None]:
    """The control port accepts new connections and cuts them."""
    stage.relay.mode = "cut"
    stage.relay.drop()
    yield
    stage.relay.mode = "forward"


@contextlib.contextmanager
def cut_in_transfer(stage: Stage) -> Iterator[None]:
    """The control connection breaks right after a request to the source."""

    def cut() -> None:
        stage.moment()
        stage.relay.drop()

    stage.relay.on_next_request(cut)
    yield


@contextlib.contextmanager
def slow_peer(stage: Stage) -> Iterator[None]:
    """Everything on the control connection takes long."""
    stage.relay.delay_s = stage.random.uniform(0.05, 0.4)
    yield
    stage.relay.delay_s = 0.0


@contextlib.contextmanager
def frozen(stage: Stage) -> Iterator[None]:
    """The source is stopped before anything is asked of it, and goes on afterwards."""
    stage.source.server.pause()
    yield
    stage.source.server.resume()


@contextlib.contextmanager
def frozen_in_transfer(stage: Stage) -> Iterator[None]:
    """The source is stopped during a transfer and goes on a moment later."""
    server = stage.source.server

    def freeze() -> None:
        stage.moment()
        server.pause()
        thaw = threading.Timer(stage.random.uniform(0.5, 2.0), server.resume)
        thaw.daemon = True
        thaw.start()

    stage.relay.on_next_request(freeze)
    yield
    server.resume()


@contextlib.contextmanager
def killed(stage: Stage) -> Iterator[None]:
    """The source is killed before anything is asked of it, and started again afterwards."""
    _kill(stage)
    yield
    _restart(stage)


@contextlib.contextmanager
def killed_in_transfer(stage: Stage) -> Iterator[None]:
    """The source is killed during a transfer, and started again afterwards."""

    def kill() -> None:
        stage.moment()
        _kill(stage)

    stage.relay.on_next_request(kill)
    yield
    _kill(stage)
    _restart(stage)


@contextlib.contextmanager
def restarted(stage: Stage) -> Iterator[None]:
    """The source was stopped and started again: same endpoint, another process, empty memory."""
    stage.source.server.stop()
    stage.relay.close()
    stage.source.server.start()
    stage.relay.open()
    yield
    stage.refill()


CHEAP: Mapping[str, Fault] = {
    "port closed": port_closed,
    "slow peer": slow_peer,
    "frozen": frozen,
    "frozen in transfer": frozen_in_transfer,
    "port silent": port_silent,
    "port cuts": port_cuts,
    "cut in transfer": cut_in_transfer,
}
COSTLY: Mapping[str, Fault] = {
    "killed": killed,
    "killed in transfer": killed_in_transfer,
    "restarted": restarted,
}
"""Faults after which a server has to start again, which takes most of the time."""
FAULTS: Mapping[str, Fault] = {**CHEAP, **COSTLY}

_CHEAP_PER_COSTLY = 4


def schedule(count: int) -> list[str]:
    """Kinds of faults in the order in which they are made: every fifth one is costly."""
    kinds = {True: list(COSTLY), False: list(CHEAP)}
    made = {True: 0, False: 0}
    chosen = []
    for number in range(count):
        costly = number % (_CHEAP_PER_COSTLY + 1) == _CHEAP_PER_COSTLY
        chosen.append(kinds[costly][made[costly] % len(kinds[costly])])
        made[costly] += 1
    return chosen


def _kill(stage: Stage) -> None:
    """With a killed source its port is gone too, so the relay must not answer in its place."""
    stage.source.server.kill()
    stage.relay.close()


def _restart(stage: Stage) -> None:
    stage.source.server.start()
    stage.relay.open()
    stage.refill()
