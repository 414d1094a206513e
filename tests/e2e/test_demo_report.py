# SPDX-License-Identifier: Apache-2.0
"""What is handed over: the JSON document, the page and the tables."""

import dataclasses
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from demo import chart, page
from demo.comparison import Comparison
from demo.environment import Environment
from demo.outcome import Outcome
from demo.report import Report
from demo.story import Plan
from rich.console import Console

PLAN = Plan(ranks=1, prompt_tokens=2048, new_tokens=2, seed=0, start_timeout_s=1.0)
ENVIRONMENT = Environment(
    versions={"sglang": "0.5.20"}, python="3.11.0", system="Linux", cpu_count=2, load=0.5
)


@pytest.fixture
def report(outcome: Outcome) -> Report:
    return Report.of(PLAN, outcome, ENVIRONMENT)


def _broken(outcome: Outcome) -> Report:
    """A run in which an answer was so wrong that its difference is no number."""
    wrong = Comparison(ids_equal=False, max_logprob_difference=math.inf, tolerance=1e-3)
    scenes = tuple(
        dataclasses.replace(scene, comparison=wrong, what="<b>5 & 6</b>")
        if scene.id == "from-peer"
        else scene
        for scene in outcome.scenes
    )
    return Report.of(PLAN, dataclasses.replace(outcome, scenes=scenes), ENVIRONMENT)


def test_the_document_says_what_was_proven(report: Report, tmp_path: Path) -> None:
    report.write_json(tmp_path / "report.json")
    document = json.loads((tmp_path / "report.json").read_text())
    expected = {
        "all_claims_hold": True,
        "all_outputs_equal": True,
        "peer_restored_tokens": 2032,
        "local_restored_tokens": 2032,
        "dead_peer_served": True,
        "damage_detected": True,
        "peer_restore_speedup": pytest.approx(5.0),
        "local_restore_speedup": pytest.approx(6.0),
        "max_logprob_difference": 0.0,
        "damage_logprob_difference": pytest.approx(2.0),
    }
    assert {name: document[name] for name in expected} == expected
    assert [scene["id"] for scene in document["scenes"]] == [
        scene.id for scene in report.outcome.scenes
    ]
    assert document["environment"]["versions"] == {"sglang": "0.5.20"}


def test_a_failed_claim_shows_in_the_document_and_a_difference_without_end_is_null(
    outcome: Outcome, tmp_path: Path
) -> None:
    _broken(outcome).write_json(tmp_path / "report.json")
    document = json.loads((tmp_path / "report.json").read_text())
    assert not document["all_claims_hold"]
    assert not document["all_outputs_equal"]
    assert document["max_logprob_difference"] is None


def test_the_page_holds_every_scene_and_every_claim_with_its_evidence(report: Report) -> None:
    html = page.render(report)
    for scene in report.outcome.scenes:
        assert html.count(scene.title) >= 3, "the table and both charts"
    for claim in report.claims:
        assert claim.sentence.replace("'", "&#39;") in html
        assert claim.evidence.replace("'", "&#39;") in html
    assert "All 9 claims hold." in html


def test_the_page_needs_nothing_else(report: Report) -> None:
    html = page.render(report)
    assert "<script" not in html
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#)[^"']*""", html) == []
    assert "url(http" not in html
    assert "@import" not in html


def test_the_page_names_the_claims_that_failed_and_escapes_what_it_shows(outcome: Outcome) -> None:
    report = _broken(outcome)
    html = page.render(report)
    assert "1 of 9 claims failed" in html
    assert "&lt;b&gt;5 &amp; 6&lt;/b&gt;" in html


def test_the_picture_is_one_document_whose_colours_follow_the_reader(report: Report) -> None:
    picture = chart.picture(report.outcome.scenes)
    ElementTree.fromstring(picture)
    assert "prefers-color-scheme: dark" in picture
    used = set(re.findall(r"var\((--[\w-]+)\)", picture))
    declared = set(re.findall(r"(--[\w-]+):", picture))
    assert used <= declared
    assert "#0000" not in picture


def test_the_same_run_gives_the_same_picture(report: Report) -> None:
    scenes = report.outcome.scenes
    assert chart.picture(scenes) == chart.picture(scenes)


def test_the_tables_hold_every_scene_and_claim(report: Report) -> None:
    console = Console(width=200, record=True, quiet=False, file=None, force_terminal=False)
    with console.capture() as captured:
        report.print(console)
    text = captured.get()
    assert all(scene.title in text for scene in report.outcome.scenes)
    assert text.count("yes") == len(report.claims)
