# SPDX-License-Identifier: Apache-2.0
"""Restores by copying, over the real KVCR: every byte, every claim, and what goes wrong."""

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvcr.types import CacheTier

from kvstrata.kvcr.batch import Batch
from kvstrata.kvcr.layout import SUPPORTED_LAYOUTS
from kvstrata.kvcr.runner import Runner
from kvstrata.kvcr_tuning import copying
from kvstrata.kvcr_tuning.copying import Copier, Copy
from kvstrata_host.kvcr.replica import KINDS, PAGES, PlainReplica

from .stores import blocks_of, every, public_claims, replica, restore

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ALL = range(PAGES)
COPIED = {"copy_restores": True}


@pytest.fixture
def copied() -> Iterator[PlainReplica]:
    with replica(COPIED) as made:
        yield made


# Bytes


@pytest.mark.parametrize("layout", SUPPORTED_LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_own_pages_of_every_kind_of_pool_come_back_byte_for_byte_without_a_transfer(
    kind: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replica(COPIED, kind, layout) as made:
        made.back_up(ALL)

        def transferred(*args: object) -> list[bool]:
            raise AssertionError("own pages went through a transfer")

        monkeypatch.setattr(Runner, "deliver", transferred)
        assert restore(made, ALL) == every(made, [True] * PAGES)
        assert public_claims(made.runner) == 0


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_own_pages_are_copied_and_those_of_a_peer_delivered_in_one_call(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered: list[int] = []
    deliver = Runner.deliver

    def count(runner: Runner, blocks: Any, hint: Any) -> list[bool]:
        delivered.append(len(blocks))
        return deliver(runner, blocks, hint)

    with replica({}) as source, replica(COPIED, peer_restore_mode=mode) as made:
        source.back_up(ALL)
        made.back_up([1])
        monkeypatch.setattr(Runner, "deliver", count)
        assert restore(made, ALL, source.hint([0, 2])) == every(made, [True] * PAGES)
        assert delivered == [2]
        assert public_claims(made.runner) == 0


def test_a_page_that_nobody_has_is_a_miss_beside_a_copied_one(copied: PlainReplica) -> None:
    copied.back_up([0])
    assert restore(copied, [9, 0]) == every(copied, [False, True])


def test_a_page_that_vanished_before_it_was_claimed_is_a_miss(copied: PlainReplica) -> None:
    copied.back_up([0, 1])
    places = {0: 0, 1: 1, 7: 2}
    blocks = blocks_of(copied, places)
    copied.pools["kv"].clear()
    found = dict.fromkeys(blocks, CacheTier.LOCAL_G2)
    batch = Batch(blocks, {"kv": list(blocks)})
    assert copied.store.ways.restore(copied.runner, batch, found, None) == [True, True, False]
    assert not any(copied.pools["kv"].read(2))
    assert public_claims(copied.runner) == 0


# Claims


def test_claims_are_released_and_the_call_is_a_miss_when_copying_fails(
    copied: PlainReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.back_up(ALL)

    def fail(*args: object) -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as broken:
        broken.setattr(copying, "_gather", fail)
        assert restore(copied, ALL) == every(copied, [False] * PAGES)
    assert public_claims(copied.runner) == 0
    assert restore(copied, ALL) == every(copied, [True] * PAGES)


def test_pages_are_claimed_while_they_are_read_and_closing_waits_for_that(
    copied: PlainReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.back_up(ALL)
    runner = copied.runner
    reading, go_on = threading.Event(), threading.Event()
    claimed: list[int] = []
    gather = copying._gather

    def slowly(run: Any) -> None:
        claimed.append(public_claims(runner))
        reading.set()
        assert go_on.wait(30)
        gather(run)

    monkeypatch.setattr(copying, "_gather", slowly)
    results: list[object] = []
    restoring = threading.Thread(target=lambda: results.append(restore(copied, ALL)))
    restoring.start()
    assert reading.wait(30)
    closing = threading.Thread(target=runner.close)
    closing.start()
    closing.join(0.5)
    assert closing.is_alive()
    go_on.set()
    for each in (restoring, closing):
        each.join(30)
        assert not each.is_alive()
    assert results == [every(copied, [True] * PAGES)]
    assert set(claimed) == {PAGES}


def test_a_closed_runner_copies_nothing(copied: PlainReplica) -> None:
    copied.back_up(ALL)
    copied.runner.close()
    assert restore(copied, ALL) == every(copied, [False] * PAGES)


def test_a_claimed_page_is_read_by_others_so_a_backup_cannot_be_copied_into_its_place(
    copied: PlainReplica,
) -> None:
    """KVCR gives no place in the tier that it does not already serve from."""
    copied.back_up([0])
    (key, references), *_ = blocks_of(copied, {0: 1}).items()
    layout = [each.label for each in references]
    with copied.runner.claimed([key], layout, None) as addresses:
        first_byte = ctypes.c_ubyte.from_address(addresses[key][0])
        first_byte.value ^= 0xFF
        assert copied.runner.deliver({key: references}, None) == [True]
        assert copied.pools["kv"].read(1)[0] == first_byte.value
    (absent, _), *_ = blocks_of(copied, {8: 1}).items()
    with copied.runner.claimed([absent], layout, None) as addresses:
        assert absent not in addresses


# Copying


@pytest.mark.parametrize("threads", [1, 2, 5])
@given(blocks=st.lists(st.integers(1, 3 << 20), min_size=1, max_size=6))
@settings(max_examples=20, deadline=None)
def test_blocks_of_any_size_are_copied_by_any_number_of_threads(
    threads: int, blocks: list[int]
) -> None:
    total = sum(blocks)
    source = np.random.default_rng(total).integers(0, 256, total, dtype=np.uint8)
    target = np.zeros(total, dtype=np.uint8)
    ends = np.cumsum(blocks)
    copies = [
        Copy(int(target.ctypes.data + end - size), int(source.ctypes.data + end - size), size)
        for size, end in zip(blocks, ends.tolist(), strict=True)
    ]
    Copier(threads).copy(copies)
    assert np.array_equal(target, source)
    target[-1] ^= 1
    assert not np.array_equal(target, source)


@pytest.mark.parametrize("threads", [1, 2])
@given(
    size=st.integers(1, 100_000),
    places=st.lists(st.integers(0, 40), min_size=1, max_size=40),
    gaps=st.sets(st.integers(1, 39)),
)
@settings(max_examples=30, deadline=None)
def test_blocks_go_from_any_places_to_places_with_any_gaps(
    threads: int, size: int, places: list[int], gaps: set[int]
) -> None:
    source = np.random.default_rng(size).integers(0, 256, (41, size), dtype=np.uint8)
    slots = [at + sum(gap <= at for gap in gaps) for at in range(len(places))]
    target = np.zeros((slots[-1] + 2, size), dtype=np.uint8)
    into, of = int(target.ctypes.data), int(source.ctypes.data)
    Copier(threads).copy(
        [
            Copy(into + slot * size, of + place * size, size)
            for slot, place in zip(slots, places, strict=True)
        ]
    )
    assert np.array_equal(target[slots], source[places])
    assert not np.delete(target, slots, axis=0).any()


def test_pages_that_follow_one_another_are_one_call_for_each_component(
    copied: PlainReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.back_up(ALL)
    runs: list[int] = []
    gather = copying._gather

    def count(run: Any) -> None:
        runs.append(len(run))
        gather(run)

    monkeypatch.setattr(copying, "_gather", count)
    assert restore(copied, ALL) == every(copied, [True] * PAGES)
    components = len(copied.runner.pools.named("kv").labels)
    assert runs == [PAGES] * components


def test_a_helper_that_cannot_be_had_does_not_leave_another_one_copying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 8 << 20
    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    copier = Copier(3)
    started, go_on = threading.Event(), threading.Event()
    copy_all = copying._copy_all

    def slowly(remaining: Any) -> None:
        started.set()
        assert go_on.wait(30)
        copy_all(remaining)

    submit: Any = copier._pool.submit  # type: ignore[union-attr]

    def once(*args: object) -> object:
        if started.is_set():
            threading.Timer(0.2, go_on.set).start()
            raise RuntimeError("can't start new thread")
        future = submit(*args)
        assert started.wait(30)
        return future

    monkeypatch.setattr(copying, "_copy_all", slowly)
    monkeypatch.setattr(copier._pool, "submit", once)
    into, of, part = int(target.ctypes.data), int(source.ctypes.data), size // 8
    copies = [Copy(into + at, of + at, part) for at in range(0, size, part)]
    with pytest.raises(RuntimeError, match="new thread"):
        copier.copy(copies)
    assert np.array_equal(target, source)
