# SPDX-License-Identifier: Apache-2.0
"""Which faults are made, and what makes a run a failure."""

import dataclasses
import io
import json

import pytest
from faults.fault import CHEAP, COSTLY, FAULTS, schedule
from faults.tally import Report, Tally
from rich.console import Console

CLEAN = Tally(faults=2, requests=6, recovered=2, peer=2048, own_dram=1024, computed=3072)


def report(**changes: int) -> Report:
    kinds = {"frozen": CLEAN, "killed": dataclasses.replace(CLEAN, **changes)}
    return Report(kinds, damage_detected=True)


def test_fifty_faults_hold_every_kind_and_ten_that_start_a_server_again() -> None:
    kinds = schedule(50)
    assert set(kinds) == set(FAULTS)
    assert sum(kind in COSTLY for kind in kinds) == 10
    assert schedule(12) == kinds[:12]
    assert not set(CHEAP) & set(COSTLY)


def test_a_run_without_a_fault_of_the_product_has_no_problem() -> None:
    assert report().problems == []
    assert report().total.requests == 12
    assert report().total.peer == 4096


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"wrong": 1}, "wrong outputs: 1"),
        ({"hung": 2}, "hung requests: 2"),
        ({"lost": 1}, "healthy workers lost: 1"),
    ],
)
def test_each_thing_that_must_not_happen_is_a_problem(
    changes: dict[str, int], problem: str
) -> None:
    assert report(**changes).problems == [problem]


def test_a_run_that_restored_nothing_or_would_not_notice_damage_proves_nothing() -> None:
    alone = Report({"frozen": dataclasses.replace(CLEAN, peer=0)}, damage_detected=False)
    assert alone.problems == [
        "nothing was restored from the peer",
        "answers from damaged pages were not called wrong",
    ]


def test_the_document_and_the_table_hold_every_kind_and_the_sum() -> None:
    document = json.loads(json.dumps(report(wrong=1).to_json()))
    assert document["problems"] == ["wrong outputs: 1"]
    assert document["kinds"]["frozen"]["peer"] == 2048
    assert document["total"]["requests"] == 12
    text = io.StringIO()
    report(wrong=1).print(Console(file=text, width=200))
    assert all(name in text.getvalue() for name in ("frozen", "killed", "all", "wrong outputs: 1"))
