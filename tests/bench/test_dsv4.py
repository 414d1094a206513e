# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace
from pathlib import Path

import pytest
from dsv4 import report
from dsv4.saving import Holding, Moment, kept
from dsv4.steady import allowed
from paired import Ratio

SWA = Holding("swa", native_bytes=100, mapped_bytes=20, expected_bytes=20, live_bytes=10)
C4 = Holding("c4", native_bytes=60, mapped_bytes=20, expected_bytes=20, live_bytes=15)
LOW = Moment(0.1, "rising", (SWA, C4))
HIGH = Moment(0.9, "rising", (replace(SWA, mapped_bytes=90, expected_bytes=90), C4))


def ratio(product: float) -> Ratio:
    return Ratio("work", (product,) * 4, (2.0,) * 4, peer="the same", limit=1.0)


@pytest.mark.parametrize(
    ("native_seconds", "most_seconds"),
    [(100e-6, 200e-6), (1e-3, 1.1e-3), (10e-3, 11e-3)],
    ids=["100 µs more", "both alike", "a tenth more"],
)
def test_a_request_may_take_a_tenth_or_100_microseconds_more(
    native_seconds: float, most_seconds: float
) -> None:
    assert native_seconds * allowed(native_seconds) == pytest.approx(most_seconds)


def test_a_moment_adds_up_its_pools() -> None:
    assert (LOW.native_bytes, LOW.mapped_bytes, LOW.live_bytes) == (160, 40, 25)
    assert LOW.share == 0.25


@pytest.mark.parametrize(
    ("moments", "was_kept"),
    [
        ((LOW, HIGH), True),
        ((LOW, LOW), False),
        ((LOW, replace(HIGH, holdings=(replace(SWA, mapped_bytes=90), C4))), False),
        ((), False),
    ],
    ids=["follows the load", "does not move", "another byte mapped", "nothing seen"],
)
def test_memory_has_to_follow_the_load_exactly(moments: tuple[Moment, ...], was_kept: bool) -> None:
    assert kept(moments) is was_kept


@pytest.mark.parametrize(("product", "was_kept"), [(2.0, True), (2.1, False)])
def test_the_report_says_what_was_measured_and_whether_all_was_kept(
    product: float, was_kept: bool, tmp_path: Path
) -> None:
    report.write(tmp_path / "dsv4.json", [ratio(product)], [LOW, HIGH])

    document = json.loads((tmp_path / "dsv4.json").read_text(encoding="utf-8"))

    assert document["kept"] is was_kept
    assert document["ratios"][0]["ratio"] == product / 2
    assert [each["share"] for each in document["moments"]] == [0.25, 110 / 160]
    assert document["moments"][1]["pools"][0]["pool"] == "swa"
