# SPDX-License-Identifier: Apache-2.0
"""Run the gates of a session: one pytest process for each, judged by the tests that really ran."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .circumstances import accelerators
from .environment import Layer
from .results import GateResult, judge, unstarted
from .stack import Gate

_TEST_TIMEOUT_S = 300


def run_gates(
    gates: Sequence[Gate],
    tests: Sequence[Path],
    layer: Layer,
    *,
    settings: Path,
    cwd: Path,
    logs: Path,
) -> tuple[GateResult, ...]:
    """Run `tests` with the pytest settings of the file `settings`, from the folder `cwd`.

    pytest's own report of each gate stays in the folder `logs`. A gate of kind gpu is not started
    on a machine without a CUDA device: its tests then run, and are skipped, with the cpu tests.
    """
    devices = accelerators()
    started = [gate for gate in gates if gate.kind != "gpu" or devices]
    results = []
    for gate in gates:
        if gate not in started:
            results.append(unstarted(gate, "no CUDA device"))
            continue
        junit = logs / f"{gate.id}.xml"
        junit.unlink(missing_ok=True)
        options: list[str | Path] = ["-c", settings, "--rootdir", cwd, "-p", "no:cacheprovider"]
        options += ["--timeout", str(_TEST_TIMEOUT_S), "--junit-xml", junit]
        if gate.processes > 1:
            options += ["--numprocesses", str(gate.processes), "--dist", "loadfile"]
        options += ["-m", selection(gate, started), *tests]
        exit_code = layer.run("-m", "pytest", *options, cwd=cwd)
        results.append(judge(gate, junit, exit_code=exit_code))
    return tuple(results)


def selection(gate: Gate, gates: Sequence[Gate]) -> str:
    """The marker expression of `gate`; tests of a kind without a gate run with the cpu tests."""
    if gate.kind != "cpu":
        return gate.kind
    return " and ".join(f"not {other.kind}" for other in gates if other.kind != "cpu")
