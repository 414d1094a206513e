# SPDX-License-Identifier: Apache-2.0
"""What was validated of a slice, by the tree of its package: stacks/evidence/<slice>/<tree>.json.

A file is written from results of sessions alone, and read with the same rules under which it is
written. It can be committed after the tree that it names: it lies outside of every package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from .checkout import Checkout
from .circumstances import Machine
from .error import StackkitError
from .results import GateResult, Run, SessionResult
from .stack import Gate, ObjectId, Slice
from .validation import present_digests
from .wheel import Wheel
from .workspace import Workspace

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


class EvidenceError(StackkitError):
    """Evidence that may not be written, or that cannot be as written."""


class TestedWheel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The wheel of a package that was tested; `tree` is that of the package's folder.

    A session that applies a slice tests what was exported from that tree.
    """

    file: str
    sha256: Sha256
    tree: ObjectId


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The host project that was tested: as installed, or the tree that a slice was applied to."""

    project: str
    release: str
    tree: ObjectId | None = None
    patched_tree: ObjectId | None = None


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One gate on one release of the host; `skipped` counts the tests by reason."""

    gate: str
    kind: str
    release: str
    result: Literal["pass", "fail", "not_run"]
    reason: str
    min_tests: int
    passed: int
    failed: int
    skipped: dict[str, int]
    command: str
    started: str
    commit: ObjectId
    machine: Machine
    python: str
    distributions: dict[str, str]
    wheels: dict[str, TestedWheel]
    base: Base | None
    log_sha256: Sha256 | None

    @property
    def place(self) -> tuple[str, str]:
        return self.gate, self.release


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    slice: str
    distribution: str
    tree: ObjectId
    rows: tuple[Row, ...]

    @property
    def file(self) -> Path:
        """Below the evidence folder."""
        return Path(self.slice, f"{self.tree}.json")


def record(workspace: Workspace, slice_id: str) -> Path:
    """Write what the present results say of a slice; rows of other runs at the same tree stay.

    Raises EvidenceError if the checkout or a run was dirty, if a result is of other files, or if
    there is none in which a test ran.
    """
    checkout = Checkout(workspace.root)
    changes = checkout.changes()
    if changes:
        raise EvidenceError(
            f"{slice_id}: no evidence of files that no commit holds: {', '.join(changes[:3])}"
            f"{' and others' if changes[3:] else ''}; commit or remove them"
        )
    entry = workspace.stacks.slices[slice_id]
    rows = {row.place: row for run in _runs(entry) for row in _rows(workspace, entry, run)}
    if not rows:
        commands = ", ".join(f"`{run.command}`" for run in _runs(entry))
        raise EvidenceError(f"{slice_id}: no result; run {commands}")
    known = read(workspace, slice_id)
    kept = [] if known is None else [row for row in known.rows if row.place not in rows]
    evidence = Evidence(
        slice=slice_id,
        distribution=entry.distribution,
        tree=checkout.tree(entry.package),
        rows=tuple(sorted([*kept, *rows.values()], key=lambda row: row.place)),
    )
    _check(evidence, entry)
    path = workspace.evidence / evidence.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(evidence), indent=2) + b"\n")
    return path


def read(workspace: Workspace, slice_id: str) -> Evidence | None:
    """The evidence of the slice's tree in HEAD, if there is any; EvidenceError if it cannot be."""
    entry = workspace.stacks.slices[slice_id]
    tree = Checkout(workspace.root).tree(entry.package)
    path = workspace.evidence / slice_id / f"{tree}.json"
    if not path.is_file():
        return None
    try:
        evidence = msgspec.json.decode(path.read_bytes(), type=Evidence)
    except msgspec.MsgspecError as error:
        raise EvidenceError(f"{_named(path)}: {error}") from error
    if (evidence.slice, evidence.tree) != (slice_id, tree):
        raise EvidenceError(f"{_named(path)}: says {evidence.slice!r} at {evidence.tree}")
    _check(evidence, entry)
    return evidence


def runs_of(entry: Slice, gate: Gate) -> Iterator[Run]:
    """A validation runs on each release that the slice supports; other sessions run once."""
    releases = entry.releases if gate.session == entry.validation else ()
    for release in releases or ("",):
        yield Run(gate.session, release)


def _runs(entry: Slice) -> list[Run]:
    return list(dict.fromkeys(run for gate in entry.gates for run in runs_of(entry, gate)))


def _rows(workspace: Workspace, entry: Slice, run: Run) -> Iterator[Row]:
    result = SessionResult.read(workspace.results, run)
    if result is None:
        return
    circumstances = result.circumstances
    again = f"run `{run.command}` again"
    if circumstances is None or not circumstances.commit:
        raise EvidenceError(f"{run.name}: it ran on files that no commit holds; {again}")
    present = present_digests(workspace)
    stale = [name for name, digest in result.packages.items() if present.get(name) != digest]
    wheels = _wheels(workspace, entry)
    if stale or wheels.keys() - result.packages.keys():
        names = ", ".join(stale) or entry.distribution
        raise EvidenceError(f"{run.name}: it ran on other files of {names}; {again}")
    if not any(gate.passed + gate.failed for gate in result.gates):
        raise EvidenceError(f"{run.name}: no test ran; {again}")
    for gate in result.gates:
        yield Row(
            gate=gate.gate,
            kind=gate.kind,
            release=run.release,
            result=gate.result,
            reason=gate.reason,
            min_tests=gate.min_tests,
            passed=gate.passed,
            failed=gate.failed,
            skipped=_counted(gate),
            command=circumstances.command,
            started=circumstances.started,
            commit=circumstances.commit,
            machine=circumstances.machine,
            python=circumstances.python,
            distributions=circumstances.distributions,
            wheels=wheels,
            base=_base(workspace, entry, result),
            log_sha256=gate.log_sha256 or None,
        )


def _counted(gate: GateResult) -> dict[str, int]:
    return dict(sorted(Counter(skip.reason for skip in gate.skipped).items()))


def _wheels(workspace: Workspace, entry: Slice) -> dict[str, TestedWheel]:
    checkout = Checkout(workspace.root)
    wheels = {}
    for each in workspace.stacks.closure(entry.id):
        package = workspace.package(each.id)
        wheel = Wheel.current(package, workspace.wheels(package))
        wheels[each.distribution] = TestedWheel(
            file=wheel.path.name, sha256=wheel.sha256, tree=checkout.tree(each.package)
        )
    return wheels


def _base(workspace: Workspace, entry: Slice, result: SessionResult) -> Base | None:
    upstream = workspace.stacks.upstream(entry.id)
    versions = {} if result.circumstances is None else result.circumstances.distributions
    if upstream is None or upstream.id not in versions:
        return None
    return Base(
        project=upstream.id,
        release=versions[upstream.id],
        tree=result.base_tree or None,
        patched_tree=result.patched_tree or None,
    )


def _check(evidence: Evidence, entry: Slice) -> None:
    """Raise EvidenceError unless every row can have come from a run of a declared gate."""
    gates = {gate.id: gate for gate in entry.gates}
    places = Counter(row.place for row in evidence.rows)
    for row in evidence.rows:
        gate = gates.get(row.gate)
        fault = (
            f"{places[row.place]} rows"
            if places[row.place] > 1
            else "no such gate is declared"
            if gate is None
            else _fault(row, gate, evidence)
        )
        if fault:
            place = f"{row.gate} on {row.release}" if row.release else row.gate
            raise EvidenceError(
                f"evidence of {evidence.slice} at {evidence.tree}: {place}: {fault}"
            )


def _fault(row: Row, gate: Gate, evidence: Evidence) -> str:
    """Why the row cannot be, or nothing."""
    ran = row.passed + row.failed
    own = row.wheels.get(evidence.distribution)
    if own is None or own.tree != evidence.tree:
        return "its wheel is of another tree"
    if row.kind != gate.kind:
        return f"kind {row.kind!r}, declared is {gate.kind!r}"
    if row.result == "pass" and (row.failed or row.passed < max(gate.min_tests, 1)):
        return f"pass with {row.passed} passed, {row.failed} failed; {gate.min_tests} must pass"
    if row.result != "pass" and not row.reason:
        return f"{row.result} without a reason"
    if ran and row.log_sha256 is None:
        return f"{ran} tests without a log"
    return ""


def _named(path: Path) -> str:
    return "/".join(("stacks", "evidence", *path.parts[-2:]))
