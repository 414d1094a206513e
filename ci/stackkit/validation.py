# SPDX-License-Identifier: Apache-2.0
"""Test a slice as its users get it: built wheels of its closure alone, away from the sources."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .checkout import Checkout
from .circumstances import Circumstances
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


class Probe(msgspec.Struct, frozen=True):
    """What probe.py prints."""

    origins: dict[str, str | None]
    distributions: dict[str, str]


def validate(workspace: Workspace, slice_id: str, layer: Layer) -> SessionResult:
    """Install the slice's closure in `layer`, check what is there and run the slice's gates.

    Raises StaleWheelError and ValidationError; a gate that fails is in the result.
    """
    digests = prepare(workspace, slice_id, layer)
    entry = workspace.stacks.slices[slice_id]
    run = Run(entry.validation, layer.release)
    checkout = Checkout(workspace.root)
    pinned = pinned_distributions(workspace, slice_id, layer)
    circumstances = Circumstances.begin(checkout, run.command, pinned)
    gates = [gate for gate in entry.gates if gate.session == entry.validation]
    results = run_away(workspace, workspace.package(slice_id), gates, layer, run=run)
    return SessionResult(
        session=run.session,
        release=run.release,
        packages=digests,
        gates=results,
        circumstances=circumstances.end(checkout),
    )


def pinned_distributions(workspace: Workspace, slice_id: str, layer: Layer) -> dict[str, str]:
    """The versions of torch, pytest and what the closure pins, as `layer` would import them."""
    wanted = {*workspace.stacks.pinned(slice_id), "torch", "pytest"}
    installed = probe(layer, []).distributions
    return {name: version for name, version in installed.items() if name.lower() in wanted}


def validate_combination(workspace: Workspace, name: str, layer: Layer) -> SessionResult:
    """Install all slices of a combination in `layer`, check what is there, run tests/<name>.

    Raises what validate() does.
    """
    digests = prepare(workspace, name, layer)
    combination = workspace.stacks.combinations[name]
    gates = [gate for gate in combination.gates if gate.session == combination.validation]
    run = Run(combination.validation, layer.release)
    results = run_gates(
        gates,
        [workspace.root / "tests" / name],
        layer,
        settings=workspace.settings,
        cwd=workspace.root,
        logs=workspace.logs(run.name),
    )
    return SessionResult(session=run.session, release=run.release, packages=digests, gates=results)


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
    run = Run("tests-host", layer.release)
    results = run_away(workspace, host, [whole(run.session)], layer, run=run)
    return SessionResult(session=run.session, release=run.release, packages=digests, gates=results)


def validate_kvcached_host(workspace: Workspace, layer: Layer) -> SessionResult:
    """Run the tests of kvcached over host memory, with no slice installed."""
    host = workspace.host
    digests = install(workspace, [host], layer)
    install_kvcached(workspace, layer)
    run = Run("tests-kvcached-host", layer.release)
    gates = [whole(run.session)]
    results = run_away(workspace, host, gates, layer, run=run, tests=Path("kvcached_host", "tests"))
    return SessionResult(session=run.session, release=run.release, packages=digests, gates=results)


def run_repository_tests(workspace: Workspace, kind: str, layer: Layer) -> SessionResult:
    """Run the tests that cross packages, tests/<kind>, in place."""
    run = Run(f"tests-{kind}", layer.release)
    results = run_gates(
        [whole(run.session)],
        [workspace.root / "tests" / kind],
        layer,
        settings=workspace.settings,
        cwd=workspace.root,
        logs=workspace.logs(run.name),
    )
    return SessionResult(session=run.session, release=run.release, packages={}, gates=results)


def gather(workspace: Workspace, runs: Sequence[Run]) -> list[SessionResult]:
    """The results of `runs`; one that is absent or of other files counts as failed."""
    present = present_digests(workspace)
    found = []
    for run in runs:
        result = SessionResult.read(workspace.results, run)
        if result is None or not result.packages.items() <= present.items():
            result = SessionResult(session=run.session, release=run.release, packages={}, gates=())
        found.append(result)
    return found


def present_digests(workspace: Workspace) -> dict[str, str]:
    """The digest of every package's present files, by distribution."""
    packages = [workspace.host, *(workspace.package(each) for each in workspace.stacks.slices)]
    return {package.distribution: package.digest() for package in packages}


def whole(session: str) -> Gate:
    """The gate of a session that declares none."""
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
    found = probe(layer, [HOST])
    version, origin = found.distributions.get(HOST), found.origins[HOST]
    home = layer.bases[0].site_packages
    if version != layer.release or not is_within(origin, home):
        raise ValidationError(
            f"{HOST} {version} is imported from {origin}, not {layer.release} from {home}"
        )


def check_imports(workspace: Workspace, slice_id: str, layer: Layer) -> None:
    """Raise ValidationError unless exactly the closure is importable, from its wheels."""
    closure = workspace.stacks.closure(slice_id)
    outsiders = workspace.stacks.outsiders(slice_id)
    modules = [entry.module for entry in (*closure, *outsiders)]
    found = probe(layer, modules)
    home = layer.environment.site_packages
    for entry in closure:
        origin = found.origins[entry.module]
        if not is_within(origin, home):
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


def probe(layer: Layer, modules: Sequence[str]) -> Probe:
    """Where the modules would be imported from, and what is installed."""
    program = Path(__file__).with_name("probe.py")
    return msgspec.json.decode(layer.output(program, *modules), type=Probe)


def is_within(origin: str | None, folder: Path) -> bool:
    return origin is not None and folder.resolve() in Path(origin).resolve().parents


def run_away(
    workspace: Workspace,
    package: Package,
    gates: Sequence[Gate],
    layer: Layer,
    *,
    run: Run,
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
        return run_gates(
            gates,
            [copied],
            layer,
            settings=workspace.settings,
            cwd=work,
            logs=workspace.logs(run.name),
        )
