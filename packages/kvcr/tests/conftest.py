# SPDX-License-Identifier: Apache-2.0
"""A runner under test and a source in a process of its own; see `runners`."""

from collections.abc import Iterator

import pytest

from .runners import Peer, Target


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.end()


@pytest.fixture
def own_peer() -> Iterator[Peer]:
    """A source that the test may freeze, kill or start again."""
    peer = Peer()
    yield peer
    peer.end()


@pytest.fixture
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.runner.close()
