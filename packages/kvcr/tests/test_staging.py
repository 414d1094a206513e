# SPDX-License-Identifier: Apache-2.0
"""Staged restores over the real KVCR and NIXL; a peer is a process of its own."""

import signal
import time

import pytest
from kvcr.types import CacheTier

from kvstrata.kvcr.runner import Runner
from kvstrata.kvcr.staging import restore_staged

from .memory import deadlines, key
from .runners import DRAM_PAGES, Peer, Target, running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def claims(target: Target) -> int:
    return len(target.runner._kvcr._core._local_dram._public_claims)


def test_staged_pages_come_from_the_peer_and_stay_in_own_dram(target: Target, peer: Peer) -> None:
    pages = range(DRAM_PAGES)
    assert target.restore(pages, peer.hint(pages), restore_staged) == [True] * DRAM_PAGES
    assert target.runner.query([key(p) for p in pages], None) == [CacheTier.LOCAL_G2] * DRAM_PAGES
    assert target.restore(pages) == [True] * DRAM_PAGES
    assert claims(target) == 0


def test_own_pages_are_not_pushed_out_by_those_that_come_with_them(
    target: Target, peer: Peer
) -> None:
    target.deposit([100, *range(200, 200 + DRAM_PAGES - 1)])
    pages = [100, *range(DRAM_PAGES - 1)]
    assert target.restore(pages, peer.hint(pages), restore_staged) == [True] * DRAM_PAGES


def test_pages_that_find_no_room_are_misses_and_the_leading_ones_are_not(
    target: Target, peer: Peer
) -> None:
    pages = range(DRAM_PAGES + 2)
    results = target.restore(pages, peer.hint(pages), restore_staged)
    assert results == [True] * DRAM_PAGES + [False] * 2
    assert claims(target) == 0


def test_a_page_missing_at_an_idle_peer_does_not_hold_up_the_others(
    target: Target, peer: Peer
) -> None:
    started = time.monotonic()
    hint = peer.hint([0, 1, 99])
    assert target.restore([0, 99, 1], hint, restore_staged) == [True, False, True]
    assert time.monotonic() - started < deadlines().operation_seconds


def test_a_peer_frozen_for_good_costs_the_pages_and_never_the_worker(
    target: Target, own_peer: Peer
) -> None:
    assert target.restore([0], own_peer.hint([0]), restore_staged) == [True]
    own_peer.signal(signal.SIGSTOP)
    assert target.restore([1, 2], own_peer.hint([1, 2]), restore_staged) == [False, False]
    time.sleep(2 * deadlines().abandon_seconds)
    assert target.ended == []
    assert claims(target) == 0
    target.deposit([5])
    assert target.restore([0, 5]) == [True, True]


def test_a_peer_killed_in_a_transfer_costs_the_pages_and_never_the_worker(
    target: Target, own_peer: Peer
) -> None:
    assert target.restore([0], own_peer.hint([0]), restore_staged) == [True]
    own_peer.signal(signal.SIGSTOP)
    results: list[list[bool]] = []
    hint = own_peer.hint(range(1, 5))
    with running(lambda: results.append(target.restore(range(1, 5), hint, restore_staged))) as call:
        call.join(0.5)
        assert call.is_alive()
        own_peer.end()
    assert results == [[False] * 4]
    assert target.ended == []
    own_peer.start()
    for attempt in ([False], [True]):
        assert target.restore([6], own_peer.hint([6]), restore_staged) == attempt


def test_claims_are_released_also_when_the_delivery_fails(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> list[bool]:
        raise RuntimeError("injected")

    target.deposit([0])
    with monkeypatch.context() as broken:
        broken.setattr(Runner, "deliver", fail)
        with pytest.raises(RuntimeError, match="injected"):
            target.restore([0], None, restore_staged)
    assert claims(target) == 0
    assert target.restore([0], None, restore_staged) == [True]


def test_a_closed_runner_stages_nothing(target: Target, peer: Peer) -> None:
    target.runner.close()
    assert target.restore([0], peer.hint([0]), restore_staged) == [False]
