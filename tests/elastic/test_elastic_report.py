# SPDX-License-Identifier: Apache-2.0
"""What is handed over: the JSON document, the page, the picture and the tables."""

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from demo.environment import Environment
from elastic import chart, page
from elastic.outcome import Outcome
from elastic.report import Report
from elastic.story import Plan
from good_run import good_run
from rich.console import Console

ENVIRONMENT = Environment(
    versions={"kvcached": "0.1.6+host"}, python="3.11.0", system="Linux", cpu_count=2, load=0.5
)


@pytest.fixture
def outcome() -> Outcome:
    return good_run()


@pytest.fixture
def report(outcome: Outcome) -> Report:
    return Report.of(Plan(), outcome, ENVIRONMENT)


@pytest.fixture
def broken(outcome: Outcome) -> Report:
    """A run in which a request was lost."""
    counts = dataclasses.replace(outcome.counts, finished=39)
    return Report.of(Plan(), dataclasses.replace(outcome, counts=counts), ENVIRONMENT)


def _document(report: Report, folder: Path) -> dict[str, object]:
    report.write_json(folder / "report.json")
    document: dict[str, object] = json.loads((folder / "report.json").read_text())
    return document


def test_the_document_says_what_was_proven(report: Report, tmp_path: Path) -> None:
    document = _document(report, tmp_path)
    outcome = report.outcome
    assert document["all_claims_hold"] is True
    assert document["peak_mapped_bytes"] == max(each.mapped_bytes for each in outcome.samples)
    assert document["native_bytes"] == outcome.native_bytes
    samples = document["samples"]
    assert isinstance(samples, list)
    assert [each["pools"]["c4"]["mapped_bytes"] for each in samples] == [
        sample.pools["c4"].mapped_bytes for sample in outcome.samples
    ]


def test_a_failed_claim_shows_in_the_document_and_on_the_page(
    broken: Report, tmp_path: Path
) -> None:
    assert _document(broken, tmp_path)["all_claims_hold"] is False
    html = page.render(broken)
    assert "1 of 17 claims failed" in html
    assert "39 of 40 requests" in html


def test_the_page_holds_every_claim_with_its_evidence(report: Report) -> None:
    html = page.render(report)
    for claim in report.claims:
        assert claim.sentence.replace("'", "&#39;") in html
        assert claim.evidence.replace("'", "&#39;") in html
    assert "All 17 claims hold." in html


def test_the_page_has_what_a_whole_model_takes_at_every_load_and_what_a_miss_left(
    report: Report,
) -> None:
    html = page.render(report)
    for shown in ("growing<br>10 %", "growing<br>90 %", "c128, native", "9 %", "45 %"):
        assert shown in html
    assert html.count("as before, in their order") == 2
    assert html.count("<svg") == 2


def test_the_page_needs_nothing_else(report: Report) -> None:
    html = page.render(report)
    assert "<script" not in html
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#)[^"']*""", html) == []
    assert "url(http" not in html
    assert "@import" not in html


def test_the_picture_is_one_document_whose_colours_follow_the_reader(outcome: Outcome) -> None:
    picture = chart.picture(outcome)
    ElementTree.fromstring(picture)
    assert "prefers-color-scheme: dark" in picture
    used = set(re.findall(r"var\((--[\w-]+)\)", picture))
    declared = set(re.findall(r"(--[\w-]+):", picture))
    assert used <= declared
    assert "#0000" not in picture
    for shown in ("mapped", "deferred", "applied", "native reservation, 600 MiB", "40 MiB"):
        assert shown in picture


def test_the_same_run_gives_the_same_picture(outcome: Outcome) -> None:
    assert chart.picture(outcome) == chart.picture(outcome)


def test_the_tables_hold_every_phase_and_claim(report: Report) -> None:
    console = Console(width=200)
    with console.capture() as captured:
        report.print(console)
    text = captured.get()
    assert all(each in text for each in ("deferred", "applied", "lifted", "growing 90%"))
    assert text.count("yes") == len(report.claims)
