# SPDX-License-Identifier: Apache-2.0
"""Evidence of the small slices, written from real runs of their gates."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import msgspec
import pytest

import stackkit
from stackkit import (
    EvidenceError,
    Run,
    SessionResult,
    StaleWheelError,
    Workspace,
    evidence_table,
    record,
    standings,
)
from stackkit.circumstances import Circumstances
from stackkit.results import judge

from .synthetic import Checkout


def revise(checkout: Checkout, **changes: object) -> None:
    """Replace a part of the result of `top`."""
    folder = checkout.workspace.results
    result = SessionResult.read(folder, Run("validate-top"))
    assert result is not None
    msgspec.structs.replace(result, **changes).write(folder)


def rows(checkout: Checkout, slice_id: str) -> list[tuple[str, str, str]]:
    found = standings(checkout.workspace, slice_id)
    return [(each.gate.id, each.result, each.reason) for each in found]


def test_a_run_at_a_commit_is_evidence_of_the_packages_tree_and_of_later_commits_of_it(
    validated: Checkout,
) -> None:
    before = rows(validated, "top")
    path = record(validated.workspace, "top")
    validated.write("docs/page.md", "text")
    validated.commit()

    (row,) = standings(validated.workspace, "top")

    assert before[0][1:] == ("not_run", f"no evidence at tree {path.stem[:12]}")
    assert path.relative_to(validated.root).parts[:3] == ("stacks", "evidence", "top")
    assert path.stem == row.tree
    assert (row.result, row.counts) == ("pass", "1/0/0")
    assert row.row is not None
    assert set(row.row.wheels) == {"kvstrata-bottom", "kvstrata-top"}
    assert row.row.command == "python3 -m nox -s validate-top"
    (wheel,) = (validated.root / "build" / "wheels" / "bottom").glob("*.whl")
    built = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert row.row.wheels["kvstrata-bottom"].sha256 == built
    log = validated.root / "build" / "results" / "logs" / "validate-top" / "top-cpu.xml"
    assert row.row.log_sha256 == hashlib.sha256(log.read_bytes()).hexdigest()


def test_evidence_names_no_machine_and_no_folder(validated: Checkout) -> None:
    text = record(validated.workspace, "top").read_text(encoding="utf-8")

    assert str(validated.root) not in text
    assert f'"{socket.gethostname()}"' not in text
    assert "hostname" not in text


def test_writing_evidence_makes_no_checkout_dirty_so_that_another_slice_can_follow(
    validated: Checkout,
) -> None:
    record(validated.workspace, "top")
    record(validated.workspace, "bottom")

    assert [row[1] for row in rows(validated, "bottom")] == ["pass", "not_run"]
    assert [row[1] for row in rows(validated, "top")] == ["pass"]


def test_a_gate_that_did_not_run_is_a_row_with_its_reason(validated: Checkout) -> None:
    absent = rows(validated, "bottom")[1]
    record(validated.workspace, "bottom")

    found = list(standings(validated.workspace, "bottom"))

    assert absent[:2] == ("bottom-gpu", "not_run")
    assert found[1].row is not None
    assert found[1].result == "not_run"
    assert found[1].reason in {"no CUDA device", "0 tests ran, 1 must"}
    assert f"bottom-gpu: not_run: {found[1].reason}" in evidence_table(found)


def test_a_failed_gate_is_recorded_as_failed_with_its_counts(validated: Checkout) -> None:
    validated.write("packages/top/tests/test_it.py", "def test_fails():\n    assert not 1\n")
    validated.build("top")
    validated.commit()
    validated.validate("top")
    record(validated.workspace, "top")

    (row,) = standings(validated.workspace, "top")

    assert (row.result, row.counts) == ("fail", "0/1/0")
    assert row.reason == "1 failed, pytest exited with 1"


@pytest.mark.parametrize("file", ["packages/top/tests/new.py", "ci/new.py"])
def test_a_dirty_checkout_writes_no_evidence(validated: Checkout, file: str) -> None:
    validated.write(file, "")

    with pytest.raises(EvidenceError, match=rf"top: no evidence of files that no .*{file}; commit"):
        record(validated.workspace, "top")
    assert not validated.workspace.evidence.exists()


def test_a_run_on_a_dirty_checkout_is_no_evidence_after_a_commit_of_the_same_files(
    validated: Checkout,
) -> None:
    checkout = stackkit.Checkout(validated.root)
    clean = Circumstances.begin(checkout, "a command", {})
    validated.write("ci/new.py", "")
    dirty = Circumstances.begin(checkout, "a command", {})

    assert checkout.changes() == ["?? ci/new.py"]
    assert (len(clean.commit), dirty.commit) == (40, "")
    assert clean.end(checkout).commit == ""
    revise(validated, circumstances=dirty)
    validated.commit()
    assert dirty.end(checkout).commit == ""
    with pytest.raises(EvidenceError, match=r"validate-top: it ran on files .* -s validate-top`"):
        record(validated.workspace, "top")


def test_a_result_of_other_files_is_no_evidence(validated: Checkout) -> None:
    validated.write("packages/top/tests/test_more.py", "def test_it():\n    assert 1\n")
    validated.commit()

    with pytest.raises(StaleWheelError, match="kvstrata-top"):
        record(validated.workspace, "top")
    validated.build("top")
    with pytest.raises(EvidenceError, match=r"validate-top: it ran on other files of kvstrata-top"):
        record(validated.workspace, "top")


def test_a_run_in_which_no_test_ran_is_no_evidence(validated: Checkout, tmp_path: Path) -> None:
    gate = validated.workspace.stacks.slices["top"].gates[0]
    revise(validated, gates=(judge(gate, tmp_path / "absent.xml", exit_code=5),))

    with pytest.raises(EvidenceError, match="validate-top: no test ran"):
        record(validated.workspace, "top")


def test_a_slice_that_was_never_validated_has_no_evidence_to_write(checkout: Checkout) -> None:
    checkout.commit()

    with pytest.raises(EvidenceError, match="top: no result; run `python3 -m nox -s validate-top`"):
        record(checkout.workspace, "top")


@pytest.mark.parametrize("changed", ["top", "bottom"])
def test_evidence_says_nothing_of_another_tree_of_the_slice_or_of_a_predecessor(
    validated: Checkout, changed: str
) -> None:
    record(validated.workspace, "top")
    validated.write(f"packages/{changed}/src/kvstrata/{changed}/new.py", "")
    uncommitted = rows(validated, "top")
    validated.commit()
    committed = rows(validated, "top")

    assert uncommitted == [("top-cpu", "not_run", "no commit holds the present files")]
    assert committed[0][1] == "not_run"
    expected = {
        "top": "no evidence at tree",
        "bottom": "the evidence is of another kvstrata-bottom",
    }
    assert committed[0][2].startswith(expected[changed])


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        pytest.param('"failed": 0', '"failed": 1', "pass with 1 passed, 1 failed", id="a failure"),
        pytest.param('"passed": 1', '"passed": 0', "pass with 0 passed", id="zero tests"),
        pytest.param('"top-cpu"', '"top-gpu"', "top-gpu: no such gate", id="an undeclared gate"),
        pytest.param('"kind": "cpu"', '"kind": "gpu"', "kind 'gpu', declared", id="another kind"),
        pytest.param('"slice": "top"', '"slice": "bottom"', "says 'bottom'", id="another slice"),
        pytest.param('"result": "pass"', '"result": "fail"', "fail without a reason", id="reason"),
        pytest.param('"passed": 1', '"passed": "many"', "Expected `int`", id="no number"),
        pytest.param('"reason"', '"because"', "because", id="an unknown key"),
    ],
)
def test_a_row_that_no_run_can_have_written_is_refused(
    validated: Checkout, old: str, new: str, reason: str
) -> None:
    path = record(validated.workspace, "top")
    file = path.relative_to(validated.root).as_posix()
    validated.edit(file, old, new)

    with pytest.raises(EvidenceError, match=reason):
        list(standings(validated.workspace, "top"))


def test_evidence_under_the_name_of_another_tree_is_refused(validated: Checkout) -> None:
    path = record(validated.workspace, "top")
    validated.write("packages/top/src/kvstrata/top/new.py", "")
    validated.commit()
    path.rename(path.with_name(f"{next(standings(validated.workspace, 'top')).tree}.json"))

    with pytest.raises(EvidenceError, match=f"says 'top' at {path.stem}"):
        list(standings(validated.workspace, "top"))


def test_every_committed_evidence_of_this_repository_can_be_read() -> None:
    workspace = Workspace.open(Path(__file__).parents[2])

    for slice_id, entry in workspace.stacks.slices.items():
        found = [each.gate.id for each in standings(workspace, slice_id)]
        assert list(dict.fromkeys(found)) == [gate.id for gate in entry.gates]
