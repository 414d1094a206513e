# SPDX-License-Identifier: Apache-2.0
"""Run the gates of a session: one pytest process for each, judged by the tests that really ran."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from .environment import Layer
from .results import GateResult, judge
from .stack import Gate

_TEST_TIMEOUT_S = 300


def run_gates(
    gates: Sequence[Gate], tests: Path, layer: Layer, *, settings: Path, cwd: Path
) -> tuple[GateResult, ...]:
    """Run `tests` with the pytest settings of the file `settings`, from the folder `cwd`."""
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for gate in gates:
            junit = Path(folder) / f"{gate.id}.xml"
            options: list[str | Path] = ["-c", settings, "--rootdir", cwd, "-p", "no:cacheprovider"]
            options += ["--timeout", str(_TEST_TIMEOUT_S), "--junit-xml", junit]
            options += ["-m", selection(gate, gates), tests]
            exit_code = layer.run("-m", "pytest", *options, cwd=cwd)
            results.append(judge(gate, junit, exit_code=exit_code))
        return tuple(results)


def selection(gate: Gate, gates: Sequence[Gate]) -> str:
    """The marker expression of `gate`; tests of a kind without a gate run with the cpu tests."""
    if gate.kind != "cpu":
        return gate.kind
    return " and ".join(f"not {other.kind}" for other in gates if other.kind != "cpu")
