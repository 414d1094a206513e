# SPDX-License-Identifier: Apache-2.0
"""What a session's tests did, as counted from pytest's own report."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree

import msgspec

from .circumstances import Circumstances
from .stack import HOST, Gate


class SkippedTest(msgspec.Struct, frozen=True):
    test: str
    reason: str


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The run of one gate; errors in setup and teardown count as failures.

    `log_sha256` is that of pytest's own report, empty where no test was started.
    """

    gate: str
    kind: str
    required: bool
    min_tests: int
    passed: int
    failed: int
    skipped: tuple[SkippedTest, ...]
    seconds: float
    result: Literal["pass", "fail", "not_run"]
    reason: str = ""
    log_sha256: str = ""


class Run(NamedTuple):
    """A session on one release of the host; empty where the release does not matter."""

    session: str
    release: str = ""

    @property
    def name(self) -> str:
        return f"{self.session}-on-{self.release}" if self.release else self.session

    @property
    def file(self) -> str:
        return f"{self.name}.json"

    @property
    def command(self) -> str:
        """What a person types to run it again."""
        behind = f" -- --{HOST} {self.release}" if self.release else ""
        return f"python3 -m nox -s {self.session}{behind}"


class SessionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run; `packages` holds the digest of each package whose code was tested.

    `circumstances` are those of a run of a slice's gates. `base_tree` and `patched_tree` are git's
    ids of what a slice was applied to, and of what came of it.
    """

    session: str
    release: str
    packages: dict[str, str]
    gates: tuple[GateResult, ...]
    circumstances: Circumstances | None = None
    base_tree: str = ""
    patched_tree: str = ""

    @property
    def run(self) -> Run:
        return Run(self.session, self.release)

    @property
    def succeeded(self) -> bool:
        """No gate failed, and some gate passed."""
        outcomes = {gate.result for gate in self.gates}
        return "pass" in outcomes and "fail" not in outcomes

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.format(msgspec.json.encode(self), indent=2)
        (folder / self.run.file).write_bytes(content + b"\n")

    @classmethod
    def read(cls, folder: Path, run: Run) -> SessionResult | None:
        path = folder / run.file
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.is_file() else None


def judge(gate: Gate, junit: Path, *, exit_code: int) -> GateResult:
    """Count the tests in `junit`; fewer than `min_tests` that ran is no success."""
    cases = list(ElementTree.parse(junit).iter("testcase")) if junit.is_file() else []
    outcomes = Counter(_outcome(case) for case in cases)
    ran = outcomes["passed"] + outcomes["failed"]
    result: Literal["pass", "fail", "not_run"] = "pass"
    reason = ""
    # pytest exits with 5 when it selected no test, which the count covers.
    if outcomes["failed"] or exit_code not in {0, 5}:
        result, reason = "fail", f"{outcomes['failed']} failed, pytest exited with {exit_code}"
    elif ran < gate.min_tests:
        reason = f"{ran} tests ran, {gate.min_tests} must"
        result = "fail" if gate.required else "not_run"
    return GateResult(
        gate=gate.id,
        kind=gate.kind,
        required=gate.required,
        min_tests=gate.min_tests,
        passed=outcomes["passed"],
        failed=outcomes["failed"],
        skipped=tuple(_skips(cases)),
        seconds=sum(float(case.get("time", 0)) for case in cases),
        result=result,
        reason=reason,
        log_sha256=hashlib.sha256(junit.read_bytes()).hexdigest() if junit.is_file() else "",
    )


def joined(first: GateResult, second: GateResult) -> GateResult:
    """One gate whose tests ran in two processes; the log is that of the first."""
    worse = next((each for each in (first, second) if each.result != "pass"), first)
    return msgspec.structs.replace(
        first,
        passed=first.passed + second.passed,
        failed=first.failed + second.failed,
        skipped=first.skipped + second.skipped,
        seconds=first.seconds + second.seconds,
        result=worse.result,
        reason=worse.reason,
    )


def unstarted(gate: Gate, reason: str) -> GateResult:
    """The result of a gate that cannot run here."""
    return GateResult(
        gate=gate.id,
        kind=gate.kind,
        required=gate.required,
        min_tests=gate.min_tests,
        passed=0,
        failed=0,
        skipped=(),
        seconds=0.0,
        result="fail" if gate.required else "not_run",
        reason=reason,
    )


def table(results: Iterable[SessionResult]) -> str:
    """One row per gate, and the reasons of what was skipped."""
    counted = f"{'passed':>8}{'failed':>8}{'skipped':>9}"
    lines = [f"{'session':<24}{HOST:<8}{'gate':<24}{counted}  result"]
    reasons: list[str] = []
    for session in results:
        start = f"{session.session:<24}{session.release:<8}"
        if not session.gates:
            lines.append(f"{start}{'':<49}  not run with the present files")
        for gate in session.gates:
            counts = f"{gate.passed:>8}{gate.failed:>8}{len(gate.skipped):>9}"
            lines.append(f"{start}{gate.gate:<24}{counts}  {gate.result}")
            name = f"{gate.gate} on {session.release}" if session.release else gate.gate
            if gate.reason:
                reasons.append(f"{name}: {gate.reason}")
            for reason, count in Counter(skip.reason for skip in gate.skipped).items():
                reasons.append(f"{name}: {count} skipped: {reason}")
    return "\n".join([*lines, *reasons])


def closing_line(results: Iterable[SessionResult]) -> str:
    gates = [gate for session in results for gate in session.gates]
    passed, failed = sum(gate.passed for gate in gates), sum(gate.failed for gate in gates)
    return f"{passed} passed, {failed} failed, {sum(len(gate.skipped) for gate in gates)} skipped"


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def _skips(cases: Iterable[ElementTree.Element]) -> Iterable[SkippedTest]:
    for case in cases:
        skip = case.find("skipped")
        if skip is not None:
            name = f"{case.get('classname')}::{case.get('name')}"
            yield SkippedTest(name, skip.get("message", ""))
