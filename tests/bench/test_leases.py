# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
from leases import report
from leases.exactness import Exactness, Step
from paired import Ratio

AS_EXPECTED = (Step(0, 8, 8), Step(1, 16, 16), Step(2, 8, 8))


def ratio(product: float) -> Ratio:
    return Ratio("work", (product,) * 4, (2.0,) * 4, peer="the same", limit=1.0)


@pytest.mark.parametrize(
    ("product", "exactness", "kept"),
    [
        (2.0, Exactness(AS_EXPECTED, left_bytes=8, tolerance_bytes=8), True),
        (2.1, Exactness(AS_EXPECTED, left_bytes=8, tolerance_bytes=8), False),
        (2.0, Exactness(AS_EXPECTED, left_bytes=9, tolerance_bytes=8), False),
        (2.0, Exactness(AS_EXPECTED, left_bytes=-9, tolerance_bytes=8), False),
        (2.0, Exactness((*AS_EXPECTED, Step(3, 8, 7)), left_bytes=0, tolerance_bytes=8), False),
        (2.0, Exactness((Step(0, 8, 8),), left_bytes=0, tolerance_bytes=8), False),
        (2.0, Exactness((), left_bytes=0, tolerance_bytes=8), False),
    ],
    ids=[
        "within",
        "ratio beyond",
        "memory left",
        "memory lost",
        "another byte mapped",
        "nothing mapped",
        "no step",
    ],
)
def test_the_report_says_whether_everything_was_kept(
    product: float, exactness: Exactness, kept: bool, tmp_path: Path
) -> None:
    report.write(tmp_path / "exact-id.json", [ratio(product)], exactness)
    document = json.loads((tmp_path / "exact-id.json").read_text(encoding="utf-8"))
    assert document["kept"] is kept
    assert document["ratios"][0]["ratio"] == product / 2


def test_the_report_names_the_steps_that_were_different(tmp_path: Path) -> None:
    wrong = Step(3, mapped_bytes=8, expected_bytes=7)
    exactness = Exactness((*AS_EXPECTED, wrong), left_bytes=0, tolerance_bytes=8)
    report.write(tmp_path / "exact-id.json", [], exactness)
    document = json.loads((tmp_path / "exact-id.json").read_text(encoding="utf-8"))
    assert document["waved_load"]["different"] == [
        {"number": 3, "mapped_bytes": 8, "expected_bytes": 7}
    ]
