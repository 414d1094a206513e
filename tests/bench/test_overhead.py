# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
from command import exit_status
from overhead import report
from overhead.growth import Growth
from paired import Ratio, in_turn, seconds
from results import verdict


def ratio(product: float, *, limit: float = 1.1) -> Ratio:
    return Ratio("work", (product,) * 4, (2.0,) * 4, peer="the same", limit=limit)


def test_a_ratio_is_that_of_the_medians_and_is_held_against_its_limit() -> None:
    measured = Ratio("work", (1.0, 3.0, 100.0), (2.0, 2.0, 2.0), peer="the same", limit=1.5)
    assert measured.value == 1.5
    assert measured.kept
    assert not ratio(2.3).kept
    assert measured.spread == (0.5, 50.0)


def test_without_a_limit_any_ratio_is_kept_and_none_is_beyond() -> None:
    unlimited = Ratio("work", (9.0,) * 4, (2.0,) * 4, peer="the same", limit=None)
    assert unlimited.kept
    assert verdict([unlimited, ratio(2.0)]) == "every ratio is within its limit"
    assert verdict([unlimited, ratio(2.3)]) == "beyond the limit: work"


def test_a_ratio_beyond_its_limit_fails_a_strict_run_alone_and_wrong_facts_fail_any() -> None:
    beyond = [ratio(2.3)]
    assert exit_status(beyond, kept=True, strict=False) == 0
    assert exit_status(beyond, kept=True, strict=True) == 1
    assert exit_status([ratio(2.0)], kept=True, strict=True) == 0
    assert exit_status([ratio(2.0)], kept=False, strict=False) == 1


def test_each_takes_its_turn_at_being_first() -> None:
    order: list[tuple[str, int]] = []

    def product(number: int) -> float:
        order.append(("product", number))
        return 1.0 + number

    def peer(number: int) -> float:
        order.append(("peer", number))
        return 10.0 + number

    assert in_turn(2, product, peer) == ((1.0, 2.0), (10.0, 11.0))
    assert order == [("peer", 0), ("product", 0), ("product", 1), ("peer", 1)]


def test_seconds_are_those_of_the_call() -> None:
    calls: list[int] = []
    assert 0 <= seconds(lambda: calls.append(1)) < 60
    assert calls == [1]


@pytest.mark.parametrize(
    ("product", "growth", "kept"),
    [
        (2.0, Growth(10, 0, 0), True),
        (2.3, Growth(10, 0, 0), False),
        (2.0, Growth(10, 1 << 30, 0), False),
        (2.0, Growth(10, 0, 10_000), False),
    ],
    ids=["within", "ratio beyond", "memory grows", "objects grow"],
)
def test_the_report_says_whether_everything_was_kept(
    product: float, growth: Growth, kept: bool, tmp_path: Path
) -> None:
    report.write(tmp_path / "overhead.json", [ratio(product)], growth)
    document = json.loads((tmp_path / "overhead.json").read_text(encoding="utf-8"))
    assert document["kept"] is kept
    assert document["ratios"][0]["ratio"] == product / 2
