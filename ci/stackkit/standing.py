# SPDX-License-Identifier: Apache-2.0
"""Where every declared gate stands at the present trees: run, or not run and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .checkout import Checkout
from .evidence import Evidence, Row, read, runs_of
from .stack import HOST, Gate
from .workspace import Workspace

_SHORT = 12


@dataclass(frozen=True)
class Standing:
    """A gate on a release of the host; `row` is its evidence, `reason` why it is not a pass."""

    slice_id: str
    gate: Gate
    release: str
    tree: str
    row: Row | None
    reason: str

    @property
    def result(self) -> str:
        return "not_run" if self.row is None else self.row.result

    @property
    def counts(self) -> str:
        """Passed, failed and skipped."""
        if self.row is None:
            return "-"
        return f"{self.row.passed}/{self.row.failed}/{sum(self.row.skipped.values())}"

    @property
    def machine(self) -> str:
        return "-" if self.row is None else str(self.row.machine)

    @property
    def date(self) -> str:
        """Of the run, in UTC."""
        return "-" if self.row is None else self.row.started.partition("T")[0]

    @property
    def short_tree(self) -> str:
        return self.tree[:_SHORT]

    @property
    def name(self) -> str:
        return f"{self.gate.id} on {HOST} {self.release}" if self.release else self.gate.id


def standings(workspace: Workspace, slice_id: str) -> Iterator[Standing]:
    """One for each declared gate on each supported release; raises EvidenceError.

    A row that was made with other predecessors than the present ones is no evidence, and nothing
    is while files of the slice differ from HEAD.
    """
    entry = workspace.stacks.slices[slice_id]
    checkout = Checkout(workspace.root)
    closure = workspace.stacks.closure(slice_id)
    trees = {each.distribution: checkout.tree(each.package) for each in closure}
    tree = trees[entry.distribution]
    changed = any(checkout.changes(each.package) for each in closure)
    evidence = read(workspace, slice_id)
    for gate in entry.gates:
        for _, release in runs_of(entry, gate):
            row = _find(evidence, gate.id, release)
            fault = "no commit holds the present files" if changed else _unfit(row, trees, tree)
            if row is None or fault:
                yield Standing(slice_id, gate, release, tree, None, fault)
            else:
                yield Standing(slice_id, gate, release, tree, row, row.reason)


def _unfit(row: Row | None, trees: Mapping[str, str], tree: str) -> str:
    """Why `row` says nothing of the closure with these trees, or nothing."""
    if row is None:
        return f"no evidence at tree {tree[:_SHORT]}"
    tested = {name: wheel.tree for name, wheel in row.wheels.items()}
    other = sorted(
        name for name in trees.keys() | tested.keys() if trees.get(name) != tested.get(name)
    )
    return f"the evidence is of another {', '.join(other)}" if other else ""


def evidence_table(found: Iterable[Standing]) -> str:
    """One line for each gate, and the reasons of what did not pass or was skipped."""
    counts = "passed/failed/skipped"
    head = f"{'gate':<22}{HOST:<8}{'result':<9}{counts:<23}{'tree':<14}{'date':<12}hardware"
    lines, reasons = [head], []
    for each in found:
        row = f"{each.gate.id:<22}{each.release:<8}{each.result:<9}{each.counts:<23}"
        lines.append(f"{row}{each.short_tree:<14}{each.date:<12}{each.machine}")
        if each.reason:
            reasons.append(f"{each.name}: {each.result}: {each.reason}")
        if each.row is not None:
            skips = each.row.skipped.items()
            reasons += [f"{each.name}: {count} skipped: {reason}" for reason, count in skips]
    return "\n".join([*lines, *reasons])


def _find(evidence: Evidence | None, gate: str, release: str) -> Row | None:
    rows = () if evidence is None else evidence.rows
    return next((row for row in rows if row.place == (gate, release)), None)
