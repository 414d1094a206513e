# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stackkit import Environment, Layer

from .synthetic import GPU_GATE, PASSING, PYPROJECT, SETTINGS, STACK, Checkout, write


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Made once, with the wheels of both slices and of the host."""
    folder = tmp_path_factory.mktemp("built")
    root = folder / "checkout"
    write(root / "pyproject.toml", SETTINGS.read_text(encoding="utf-8"))
    write(root / ".gitignore", "build/\n")
    subprocess.run(["git", "init", "--quiet", root], check=True)
    stack = 'title = "Synthetic"\n'
    stack += STACK.format(id="top", requires='"bottom"') + STACK.format(id="bottom", requires="")
    write(root / "stacks" / "synthetic.toml", stack)
    for name, dependencies in (("bottom", ""), ("top", '"kvstrata-bottom>=0.1,<0.2"')):
        package = root / "packages" / name
        text = PYPROJECT.format(
            name=f"kvstrata-{name}", package="kvstrata", dependencies=dependencies
        )
        write(package / "pyproject.toml", text)
        write(package / "src" / "kvstrata" / name / "__init__.py", "")
        write(package / "tests" / "test_it.py", PASSING.format(module=f"kvstrata.{name}"))
    host = PYPROJECT.format(name="kvstrata-ci-host", package="kvstrata_host", dependencies="")
    write(root / "ci" / "host" / "pyproject.toml", host)
    write(root / "ci" / "host" / "src" / "kvstrata_host" / "__init__.py", "")
    thin = folder / "thin"
    virtualenv = [sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update"]
    subprocess.run([*virtualenv, thin], check=True)
    made = Checkout(root, Layer(Environment(thin), (Environment(Path(sys.prefix)),)))
    made.build("ci-host", "bottom", "top")
    return made


@pytest.fixture
def checkout(built: Checkout, tmp_path: Path) -> Checkout:
    """A copy of its own for each test."""
    shutil.copytree(built.root.parent, tmp_path / "copy", symlinks=True)
    thin = Environment(tmp_path / "copy" / "thin")
    return Checkout(tmp_path / "copy" / "checkout", Layer(thin, built.layer.bases))


@pytest.fixture(scope="session")
def run_once(built: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Both slices at a commit, with the results of both; `bottom` also has a gpu gate."""
    folder = tmp_path_factory.mktemp("validated")
    shutil.copytree(built.root.parent, folder / "copy", symlinks=True)
    layer = Layer(Environment(folder / "copy" / "thin"), built.layer.bases)
    made = Checkout(folder / "copy" / "checkout", layer)
    stack = (made.root / "stacks" / "synthetic.toml").read_text(encoding="utf-8")
    made.write("stacks/synthetic.toml", stack + GPU_GATE)
    made.commit()
    made.validate("bottom")
    made.validate("top")
    return made


@pytest.fixture
def validated(run_once: Checkout, tmp_path: Path) -> Checkout:
    """A copy of its own for each test; its environment is shared and has both slices."""
    shutil.copytree(run_once.root, tmp_path / "checkout", symlinks=True)
    return Checkout(tmp_path / "checkout", run_once.layer)
