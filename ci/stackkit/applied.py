# SPDX-License-Identifier: Apache-2.0
"""Test an exported tree: the slice under its upstream's names, and nothing of ours installed."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path

import msgspec

from .checkout import Checkout
from .circumstances import Circumstances
from .environment import Layer
from .results import Run, SessionResult, joined
from .stack import Slice
from .testrun import run_gates
from .validation import (
    ValidationError,
    install,
    install_kvcached,
    is_within,
    pinned_distributions,
    probe,
    whole,
)
from .workspace import Workspace


class Applied(msgspec.Struct, frozen=True):
    """A tree that is ready to run.

    Args:
        tree: its folder.
        path: the folder of its importable packages.
        tests: the slice's exported tests, files in the tree.
        checks: folder of the slice's other tests, under the upstream's names; empty if none.
        upstream_tests: the upstream's own tests that are in the tree.
        base_tree: git's id of the tree that the slices were applied to.
        patched_tree: git's id of the tree with all of them.
    """

    tree: str
    path: str
    tests: tuple[str, ...]
    checks: str
    upstream_tests: tuple[str, ...]
    base_tree: str
    patched_tree: str

    @classmethod
    def read(cls, workspace: Workspace, slice_id: str) -> Applied:
        """What `python -m stackkit.export apply` left; raises ValidationError if nothing."""
        record = workspace.root / "build" / "apply" / slice_id / "applied.json"
        try:
            return msgspec.json.decode(record.read_bytes(), type=cls)
        except FileNotFoundError:
            raise ValidationError(f"{slice_id}: {record}: not applied; see the export") from None


def validate_applied(workspace: Workspace, slice_id: str, layer: Layer) -> SessionResult:
    """Run the gates of the session apply-<slice> on the tree that was applied.

    Raises StaleWheelError, and ValidationError if anything but the tree is imported.
    """
    applied = Applied.read(workspace, slice_id)
    entry = workspace.stacks.slices[slice_id]
    digests = install(workspace, [workspace.host], layer)
    if "kvcached" in workspace.stacks.pinned(slice_id):
        install_kvcached(workspace, layer)
    layer = dataclasses.replace(layer, variables={**layer.variables, "PYTHONPATH": applied.path})
    _link_built(Path(applied.path), entry, layer)
    check_tree(applied, entry, layer)
    for part in workspace.stacks.closure(slice_id):
        digests[part.distribution] = workspace.package(part.id).digest()
    run = Run(entry.application)
    checkout = Checkout(workspace.root)
    pinned = pinned_distributions(workspace, slice_id, layer)
    circumstances = Circumstances.begin(checkout, run.command, pinned)
    tree = Path(applied.tree)
    own = [tree / each for each in applied.tests]
    if applied.checks:
        own.append(Path(applied.checks))
    start = functools.partial(
        run_gates,
        layer=layer,
        settings=Path(__file__).with_name("applied-tests.toml"),
        cwd=Path(applied.checks or tree),
        logs=workspace.logs(run.name),
    )
    gates = [gate for gate in entry.gates if gate.session == run.session] or [whole(run.session)]
    results = start(gates, own)
    if applied.upstream_tests:
        # In a process of their own: they put modules of theirs in the place of real ones.
        theirs = [tree / each for each in applied.upstream_tests]
        (others,) = start([whole(f"{entry.upstream}-tests")], theirs)
        results = (joined(results[0], others), *results[1:])
    return SessionResult(
        session=run.session,
        release=run.release,
        packages=digests,
        gates=results,
        circumstances=circumstances.end(checkout),
        base_tree=applied.base_tree,
        patched_tree=applied.patched_tree,
    )


def check_tree(applied: Applied, entry: Slice, layer: Layer) -> None:
    """Raise ValidationError unless the upstream comes from the tree, and nothing is ours."""
    upstream = str(entry.upstream)
    found = probe(layer, ["kvstrata", upstream]).origins
    if found["kvstrata"] is not None:
        raise ValidationError(f"{entry.id}: kvstrata is importable from {found['kvstrata']}")
    if not is_within(found[upstream], Path(applied.path)):
        raise ValidationError(
            f"{entry.id}: {upstream} comes from {found[upstream]}, not from {applied.path}"
        )


def _link_built(path: Path, entry: Slice, layer: Layer) -> None:
    """Put what was built of the upstream for this machine beside its sources."""
    installed = layer.environment.site_packages
    for built in installed.glob(f"{entry.upstream}/**/*.so"):
        target = path / built.relative_to(installed)
        if target.parent.is_dir() and not target.exists():
            os.link(built, target)
