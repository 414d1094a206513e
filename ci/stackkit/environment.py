# SPDX-License-Identifier: Apache-2.0
"""Environments that are made once from lock files, and thin ones that are laid over them."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .error import StackkitError

_STAMP = "made-from.sha256"
_HEADERS = {
    "Python.h": (Path(sysconfig.get_path("include")), "python3-dev"),
    "openssl/sha.h": (Path("/usr/include"), "libssl-dev"),
}


class SetupError(StackkitError):
    """Something that the machine lacks, or an environment that cannot be made or used."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    path: Path

    @property
    def bin(self) -> Path:
        return self.path / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def site_packages(self) -> Path:
        return self.path / "lib" / f"python{_series()}" / "site-packages"

    @property
    def made_from(self) -> str:
        """The digest of the recipe; SetupError if the environment was not completed from one."""
        try:
            return (self.path / _STAMP).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise SetupError(f"{self.path}: not an environment that was made completely") from error


@dataclass(frozen=True)
class Layer:
    """A thin environment over others: what is installed in it comes first, then `bases` in order.

    `release` is the version of the host that the bases are to give, or empty if it does not matter.
    """

    environment: Environment
    bases: tuple[Environment, ...]
    release: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def lay(self) -> None:
        site_packages = self.environment.site_packages
        if not site_packages.is_dir():
            raise SetupError(f"{site_packages}: no environment of Python {_series()} there")
        lines = "".join(f"{base.site_packages}\n" for base in self.bases)
        (site_packages / "_base.pth").write_text(lines, encoding="utf-8")

    def process_environment(self) -> dict[str, str]:
        """The page hash of SGLang, compiled at first use, is kept with what brings SGLang."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in {"PYTHONPATH", "PYTHONHOME"}
        }
        bins = [str(each.bin) for each in (self.environment, *self.bases)]
        return {
            **kept,
            "PATH": os.pathsep.join([*bins, kept.get("PATH", os.defpath)]),
            "TORCH_EXTENSIONS_DIR": str(self.bases[0].path / "torch_extensions"),
            "VIRTUAL_ENV": str(self.environment.path),
            **self.variables,
        }

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> int:
        """Run the layer's Python; returns its exit status."""
        command = [self.environment.python, *arguments]
        return subprocess.run(
            command, cwd=cwd, env=self.process_environment(), check=False
        ).returncode

    def output(self, *arguments: str | Path) -> str:
        """What the layer's Python prints, whatever its exit status."""
        command = [self.environment.python, *arguments]
        return subprocess.run(
            command,
            env=self.process_environment(),
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout


@dataclass(frozen=True)
class Recipe:
    """What an environment is made of.

    `with_dependencies` are installed first, constrained by the locks, and bring what they need on
    this machine; then come exactly the distributions of `locks`.
    """

    locks: tuple[Path, ...]
    with_dependencies: tuple[str, ...] = ()

    def digest(self) -> str:
        total = hashlib.sha256()
        facts = (sys.implementation.cache_tag, platform.python_version(), platform.machine())
        total.update(repr((facts, self.with_dependencies)).encode())
        for lock in self.locks:
            total.update(lock.read_bytes())
        return total.hexdigest()

    def make(self, path: Path, report: Callable[[str], None]) -> Environment:
        """Make the environment at `path`, or reuse it if it was completed from this recipe."""
        environment = Environment(path)
        stamp = path / _STAMP
        digest = self.digest()
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
            return environment
        if path.exists():
            report(f"{path.name}: incomplete or made from other inputs; made again")
            shutil.rmtree(path)
        start = time.monotonic()
        virtualenv = [sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update"]
        _run([*virtualenv, str(path)])
        for requirement in self.with_dependencies:
            report(f"{path.name}: installing {requirement} with what it needs on this machine")
            constraints = [word for lock in self.locks for word in ("--constraint", str(lock))]
            _pip(environment, [*constraints, requirement])
        names = ", ".join(lock.name for lock in self.locks)
        report(f"{path.name}: installing {names} ({time.monotonic() - start:.0f} s so far)")
        requirements = [word for lock in self.locks for word in ("--requirement", str(lock))]
        _pip(environment, ["--no-deps", *requirements])
        stamp.write_text(digest, encoding="utf-8")
        report(f"{path.name}: made in {time.monotonic() - start:.0f} s")
        return environment


def check_compiler() -> None:
    """Raise SetupError, naming what to install, if a torch extension cannot be compiled."""
    missing = {} if shutil.which("g++") else {"g++": "g++"}
    for header, (folder, package) in _HEADERS.items():
        if not _has_header(header, folder):
            missing[header] = package
    if missing:
        raise SetupError(
            "SGLang compiles its page hash at first use, and this machine lacks "
            f"{', '.join(missing)}; fix: apt-get install {' '.join(missing.values())}"
        )


def _has_header(header: str, folder: Path) -> bool:
    if not shutil.which("g++"):
        return (folder / header).is_file()
    done = subprocess.run(
        ["g++", "-E", "-x", "c++", "-I", str(folder), "-", "-o", os.devnull],
        input=f"#include <{header}>\n",
        text=True,
        check=False,
        capture_output=True,
    )
    return done.returncode == 0


def _pip(environment: Environment, arguments: list[str]) -> None:
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check", "install"]
    _run([*pip, *quiet, *arguments])


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError as error:
        raise SetupError(f"`{' '.join(command)}` exited with {error.returncode}") from error


def _series() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
