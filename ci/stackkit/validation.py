# SPDX-License-Identifier: Apache-2.0
"""Test a slice as its users get it: built wheels of its closure alone, away from the sources."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .environment import Layer
from .error import StackkitError
from .package import Package
from .results import GateResult, Run, SessionResult
from .stack import HOST, Gate
from .testrun import run_gates
from .wheel import Wheel
from .workspace import Workspace


class ValidationError(StackkitError):
    """An environment that does not hold exactly the slice and its predecessors."""


class _Probe(msgspec.Struct, frozen=True):
    origins: dict[str, str | None]
    distributions: dict[str, str]


def validate(workspace: Workspace, slice_id: str, layer: Layer) -> SessionResult:
    """Install the slice's closure in `layer`, check what is there and run the slice's gates.

    Raises StaleWheelError and ValidationError; a gate that fails is in the result.
    """
    digests = prepare(workspace, slice_id, layer)
    entry = workspace.stacks.slices[slice_id]
    gates = [gate for gate in entry.gates if gate.session == entry.validation]
    results = run_away(workspace, workspace.package(slice_id), gates, layer)
    return SessionResult(
        session=entry.validation, release=layer.release, packages=digests, gates=results
    )


def validate_combination(workspace: Workspace, name: str, layer: Layer) -> SessionResult:
    """Install all slices of a combination in `layer`, check what is there, run tests/<name>.

    Raises what validate() does.
    """
    digests = prepare(workspace, name, layer)
    combination = workspace.stacks.combinations[name]
    gates = [gate for gate in combination.gates if gate.session == combination.validation]
    tests = workspace.root / "tests" / name
    results = run_gates(gates, tests, layer, settings=workspace.settings, cwd=workspace.root)
    return SessionResult(
        session=combination.validation, release=layer.release, packages=digests, gates=results
    )


def prepare(workspace: Workspace, name: str, layer: Layer) -> dict[str, str]:
    """Install the closure of a slice or of a combination, and check that exactly it is there.

    Returns what install() does.
    """
    closure = workspace.stacks.closure(name)
    packages = [workspace.host, *(workspace.package(entry.id) for entry in closure)]
    digests = install(workspace, packages, layer)
    if "kvcached" in workspace.stacks.pinned(name):
        install_kvcached(workspace, layer)
    check_requirements(workspace, name, layer)
    check_imports(workspace, name, layer)
    return digests


def validate_host(workspace: Workspace, layer: Layer) -> SessionResult:
    """Run the tests of the host, with no slice installed."""
    host = workspace.host
    digests = install(workspace, [host], layer)
    gates = [_whole("tests-host")]
    results = run_away(workspace, host, gates, layer)
    return SessionResult(
        session="tests-host", release=layer.release, packages=digests, gates=results
    )


def validate_kvcached_host(workspace: Workspace, layer: Layer) -> SessionResult:
    """Run the tests of kvcached over host memory, with no slice installed."""
    host = workspace.host
    digests = install(workspace, [host], layer)
    install_kvcached(workspace, layer)
    gates = [_whole("tests-kvcached-host")]
    results = run_away(workspace, host, gates, layer, tests=Path("kvcached_host", "tests"))
    return SessionResult(
        session="tests-kvcached-host", release=layer.release, packages=digests, gates=results
    )


def run_repository_tests(workspace: Workspace, kind: str, layer: Layer) -> SessionResult:
    """Run the tests that cross packages, tests/<kind>, in place."""
    gates = [_whole(f"tests-{kind}")]
    tests = workspace.root / "tests" / kind
    results = run_gates(gates, tests, layer, settings=workspace.settings, cwd=workspace.root)
    return SessionResult(session=f"tests-{kind}", release=layer.release, packages={}, gates=results)


def gather(workspace: Workspace, runs: Sequence[Run]) -> list[SessionResult]:
    """The results of `runs`; one that is absent or of other files counts as failed."""
    packages = [workspace.host, *(workspace.package(each) for each in workspace.stacks.slices)]
    present = {package.distribution: package.digest() for package in packages}
    found = []
    for run in runs:
        result = SessionResult.read(workspace.results, run)
        if result is None or not result.packages.items() <= present.items():
            result = SessionResult(session=run.session, release=run.release, packages={}, gates=())
        found.append(result)
    return found


def _whole(session: str) -> Gate:
    return Gate(id=session, kind="cpu", session=session, required=True, min_tests=1)


def install(workspace: Workspace, packages: Sequence[Package], layer: Layer) -> dict[str, str]:
    """Install the current wheels of `packages`; returns each one's digest by distribution.

    Raises ValidationError unless the layer's own release of the host is the one that is imported.
    """
    wheels = [Wheel.current(package, workspace.wheels(package)) for package in packages]
    layer.lay()
    _pip_install(layer, [wheel.path for wheel in wheels])
    if layer.release:
        check_release(layer)
    return {
        package.distribution: wheel.package_digest
        for package, wheel in zip(packages, wheels, strict=True)
    }


def install_kvcached(workspace: Workspace, layer: Layer) -> None:
    """Install the build of kvcached for a host, after install(), with what it needs."""
    _pip_install(layer, workspace.kvcached_host.current(layer.bases[-1]))


def _pip_install(layer: Layer, wheels: Sequence[Path]) -> None:
    options = ["--quiet", "--no-index", "--no-deps", "--force-reinstall"]
    if layer.run("-m", "pip", "install", *options, *wheels) != 0:
        names = ", ".join(wheel.name for wheel in wheels)
        raise ValidationError(f"cannot install {names}")


def check_requirements(workspace: Workspace, slice_id: str, layer: Layer) -> None:
    """Raise ValidationError if `pip check` has a complaint about a slice of the closure."""
    ours = {entry.distribution for entry in workspace.stacks.closure(slice_id)}
    complaints = [
        line
        for line in layer.output("-m", "pip", "check").splitlines()
        if line.partition(" ")[0] in ours
    ]
    if complaints:
        raise ValidationError(f"{slice_id}: pip check: {'; '.join(complaints)}")


def check_release(layer: Layer) -> None:
    """Raise ValidationError unless the host is of the layer's release and from its first base."""
    found = _probe(layer, [HOST])
    version, origin = found.distributions.get(HOST), found.origins[HOST]
    home = layer.bases[0].site_packages
    if version != layer.release or not _is_within(origin, home):
        raise ValidationError(
            f"{HOST} {version} is imported from {origin}, not {layer.release} from {home}"
        )


def check_imports(workspace: Workspace, slice_id: str, layer: Layer) -> None:
    """Raise ValidationError unless exactly the closure is importable, from its wheels."""
    closure = workspace.stacks.closure(slice_id)
    outsiders = workspace.stacks.outsiders(slice_id)
    modules = [entry.module for entry in (*closure, *outsiders)]
    found = _probe(layer, modules)
    home = layer.environment.site_packages
    for entry in closure:
        origin = found.origins[entry.module]
        if not _is_within(origin, home):
            raise ValidationError(
                f"{slice_id}: {entry.module} comes from {origin}, not from {home}"
            )
    for entry in outsiders:
        origin = found.origins[entry.module]
        if origin is not None:
            raise ValidationError(
                f"{slice_id}: {entry.module} is no predecessor, yet importable from {origin}"
            )
    expected = {entry.distribution for entry in closure} | {workspace.host.distribution}
    ours = {name for name in found.distributions if name.startswith("kvstrata-")}
    extra = sorted(ours - expected)
    if extra:
        raise ValidationError(f"{slice_id}: {', '.join(extra)} is installed, and no predecessor")


def _probe(layer: Layer, modules: Sequence[str]) -> _Probe:
    probe = Path(__file__).with_name("probe.py")
    return msgspec.json.decode(layer.output(probe, *modules), type=_Probe)


def _is_within(origin: str | None, folder: Path) -> bool:
    return origin is not None and folder.resolve() in Path(origin).resolve().parents


def run_away(
    workspace: Workspace,
    package: Package,
    gates: Sequence[Gate],
    layer: Layer,
    *,
    tests: Path = Path("tests"),
) -> tuple[GateResult, ...]:
    """Run the tests of `package` from a temporary copy, out of reach of the sources.

    `tests` is their folder in the package.
    """
    with tempfile.TemporaryDirectory(prefix=f"{package.distribution}-") as folder:
        work = Path(folder).resolve()
        copied = work / tests
        copied.mkdir(parents=True)
        for file in package.files():
            if file.is_relative_to(tests):
                (work / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(package.folder / file, work / file)
        return run_gates(gates, copied, layer, settings=workspace.settings, cwd=work)
