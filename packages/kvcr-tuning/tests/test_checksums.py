# SPDX-License-Identifier: Apache-2.0
"""Checks of restored bytes, over the real KVCR: what is damaged is a miss, and nothing else is."""

import logging
from typing import Any

import pytest
from prometheus_client import REGISTRY

from kvstrata.kvcr.hints import carrying
from kvstrata.kvcr.metrics import PrometheusRecorder
from kvstrata_host.kvcr.replica import KINDS, PAGES, PlainReplica

from .stores import damage, every, replica, restore

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ALL = range(PAGES)
CHECKED = {"verify_bytes": True}


@pytest.mark.parametrize("kind", KINDS)
def test_whole_pages_of_every_kind_of_pool_pass(kind: str) -> None:
    with replica(CHECKED, kind) as source, replica(CHECKED, kind) as made:
        source.back_up(ALL)
        assert restore(source, ALL) == every(source, [True] * PAGES)
        assert restore(made, ALL, source.hint(ALL)) == every(made, [True] * PAGES)


def contents_are_wrong(made: PlainReplica, page: int) -> bool:
    """Whether a page is restored with bytes that are not its own."""
    try:
        restore(made, [page])
    except AssertionError:
        return True
    return False


def test_without_the_check_a_damaged_page_is_restored() -> None:
    with replica({}) as made:
        made.back_up(ALL)
        damage(made, 1)
        assert contents_are_wrong(made, 1)


@pytest.mark.parametrize("part", [0, 1, -1])
@pytest.mark.parametrize("copies", [False, True])
def test_a_page_that_was_damaged_in_own_dram_is_a_miss_and_the_others_are_not(
    *, copies: bool, part: int, caplog: pytest.LogCaptureFixture
) -> None:
    labels = {"tp_rank": f"checked {copies} {part}"}
    with replica(CHECKED | {"copy_restores": copies}) as made:
        session: Any = made.store._session
        object.__setattr__(session, "recorder", PrometheusRecorder(labels))
        made.back_up(ALL)
        damage(made, 1, part=part)
        with caplog.at_level(logging.ERROR):
            results = made.store.batch_get_v2(made.transfers({page: page for page in ALL}))
    assert results == {"kv": [True, False, True]}
    assert "came damaged from own DRAM" in caplog.text
    missed = labels | {"reason": "failed"}
    assert REGISTRY.get_sample_value("kvcr_missed_pages_total", missed) == 1


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_a_page_that_came_damaged_from_a_peer_is_a_miss_and_the_others_are_not(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    with replica(CHECKED) as source, replica(CHECKED, peer_restore_mode=mode) as made:
        source.back_up(ALL)
        damage(source, 0)
        with caplog.at_level(logging.ERROR), carrying(source.hint(ALL)):
            results = made.store.batch_get_v2(made.transfers({page: page for page in ALL}))
    assert results == {"kv": [False, True, True]}
    assert "came damaged from a peer" in caplog.text


def test_a_delivery_that_filled_nothing_is_found_out_though_the_place_holds_an_older_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with replica(CHECKED) as made:
        made.back_up([0])
        monkeypatch.setattr(type(made.runner), "deliver", lambda runner, blocks, hint: [True])
        # The page is still at its place, with the checksum of its backup beside it.
        results = made.store.batch_get_v2(made.transfers({0: 0}))
    assert results == {"kv": [False]}


def test_one_page_in_place_of_another_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with replica(CHECKED) as made:
        made.back_up([0, 1])
        deliver: Any = type(made.runner).deliver

        def exchanged(runner: Any, blocks: Any, hint: Any) -> Any:
            places = list(blocks.values())[::-1]
            return deliver(runner, dict(zip(blocks, places, strict=True)), hint)

        monkeypatch.setattr(type(made.runner), "deliver", exchanged)
        results = made.store.batch_get_v2(made.transfers({0: 0, 1: 1}))
    assert results == {"kv": [False, False]}


def test_servers_that_do_not_agree_on_checks_never_meet() -> None:
    with replica({}) as plain, replica(CHECKED) as checked:
        plain.back_up(ALL)
        checked.back_up([8])
        assert restore(checked, ALL, plain.hint(ALL)) == every(checked, [False] * PAGES)
        assert restore(plain, [8], checked.hint([8])) == every(plain, [False])
