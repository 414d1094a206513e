# SPDX-License-Identifier: Apache-2.0
"""A checkout with two small slices, `bottom` and `top`, as real ones are laid out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from stackkit import Layer, SessionResult, Wheel, Workspace, validate

SETTINGS = Path(__file__).parents[2] / "pyproject.toml"
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
dependencies = [{dependencies}]

[tool.hatch.build.targets.wheel]
packages = ["src/{package}"]
"""
STACK = """
[[slices]]
id = "{id}"
package = "packages/{id}"
requires = [{requires}]
pins = []

[[slices.gates]]
id = "{id}-cpu"
kind = "cpu"
session = "validate-{id}"
required = true
min_tests = 1
"""
GPU_GATE = """
[[slices.gates]]
id = "bottom-gpu"
kind = "gpu"
session = "validate-bottom"
required = false
min_tests = 1
"""
PASSING = """
import {module}

def test_passes():
    assert {module}.__file__
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Checkout:
    root: Path
    layer: Layer

    @property
    def workspace(self) -> Workspace:
        return Workspace.open(self.root)

    def write(self, file: str, text: str) -> None:
        write(self.root / file, text)

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.root / file).read_text(encoding="utf-8")
        assert old in text
        self.write(file, text.replace(old, new))

    def commit(self) -> None:
        """Commit everything that is not ignored."""
        author = ["-c", "user.name=A Person", "-c", "user.email=person@example.org"]
        for command in (["add", "--all"], [*author, "commit", "--quiet", "--message", "A change"]):
            subprocess.run(["git", *command], cwd=self.root, check=True)

    def build(self, *names: str) -> list[Wheel]:
        workspace = self.workspace
        packages = [
            workspace.host if name == "ci-host" else workspace.package(name) for name in names
        ]
        return [
            Wheel.build(package, workspace.wheels(package), python=Path(sys.executable))
            for package in packages
        ]

    def validate(self, slice_id: str) -> SessionResult:
        result = validate(self.workspace, slice_id, self.layer)
        result.write(self.workspace.results)
        return result
