# SPDX-License-Identifier: Apache-2.0
"""An exported tree made ready to run: with what was built for it, and with the slice's checks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..applied import Applied
from .base import Base
from .branch import Slice
from .git import Repository
from .layer import apply_all


def ready(tree: Path, base: Base, top: Slice, output: Path) -> Applied:
    """Put what was built beside the sources, and write the checks; raises ExportError."""
    for target, place in base.built:
        if (tree / target).parent.is_dir():
            _link(place, tree / target)
    layer = top.layer
    checks = output / "checks"
    for file in layer.helpers:
        place = checks / file.target
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(layer.translated(file, top.package, top.root), encoding="utf-8")
    apply_all(layer.checks, checks)
    tests = [file.target for file in layer.files if Path(file.target).name.startswith("test_")]
    return Applied(
        tree=str(tree),
        path=str(tree / "python" if (tree / "python").is_dir() else tree),
        tests=tuple(tests),
        checks=str(checks) if checks.is_dir() else "",
        upstream_tests=tuple(each for each in layer.upstream_tests if (tree / each).exists()),
        base_tree=base.repository.tree(base.commit),
        patched_tree=Repository(tree).tree("HEAD"),
    )


def _link(place: Path, target: Path) -> None:
    try:
        os.link(place, target)
    except OSError:
        shutil.copyfile(place, target)
