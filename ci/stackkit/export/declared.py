# SPDX-License-Identifier: Apache-2.0
"""The slices of a checkout as they are exported; packages/<slice>/upstream/layer.py has each."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path

from ..package import Package
from ..stack import Stacks, Upstream
from .branch import Slice
from .error import ExportError
from .layer import Layer

_FILE = Path("upstream", "layer.py")


def stack_of(stacks: Stacks, root: Path, slice_id: str) -> tuple[Upstream, list[Slice]]:
    """The upstream of a slice, and the slices that are exported to it, predecessors first.

    Raises ExportError for a slice that is not exported.
    """
    top = stacks.slices[slice_id]
    if top.upstream is None or not (root / top.package / _FILE).is_file():
        fix = f"write {top.package}/{_FILE}, and name the upstream in stacks/"
        raise ExportError(top.package, slice_id, "is not exported", fix)
    upstream = next(
        each
        for stack in stacks.stacks.values()
        for each in stack.upstreams
        if each.id == top.upstream
    )
    slices = []
    for entry in stacks.closure(slice_id):
        folder = root / entry.package
        if entry.upstream != top.upstream or not (folder / _FILE).is_file():
            continue
        package = Package.read(folder)
        merged = entry.pull_request is not None and entry.pull_request.status == "merged"
        slices.append(
            Slice(
                id=entry.id,
                distribution=package.distribution,
                version=str(package.version),
                package=folder,
                root=root,
                tree=tree_of(folder),
                layer=layer_of(folder / _FILE),
                merged=merged,
            )
        )
    return upstream, slices


def layer_of(file: Path) -> Layer:
    """LAYER of a Python file; raises ExportError if it has none."""
    spec = importlib.util.spec_from_file_location(f"_layer_of_{file.parents[1].name}", file)
    if spec is None or spec.loader is None:
        raise ExportError(str(file), "", "cannot be imported", "write it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    layer = getattr(module, "LAYER", None)
    if not isinstance(layer, Layer):
        raise ExportError(str(file), "LAYER", "is no Layer", "write LAYER = Layer(...)")
    return layer


def tree_of(folder: Path) -> str:
    """The id that git would give the folder's files as they are now, committed or not."""
    with tempfile.TemporaryDirectory() as temporary:
        variables = {**os.environ, "GIT_INDEX_FILE": str(Path(temporary, "index"))}

        def git(*arguments: str) -> str:
            done = subprocess.run(
                ["git", *arguments],
                cwd=folder,
                env=variables,
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                reason = done.stderr.strip().splitlines()[-1]
                raise ExportError(str(folder), f"git {arguments[0]}", reason, "use a git checkout")
            return done.stdout.strip()

        git("add", "--all", ".")
        prefix = git("rev-parse", "--show-prefix")
        return git("write-tree", f"--prefix={prefix}")
