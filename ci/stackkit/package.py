# SPDX-License-Identifier: Apache-2.0
"""A distribution in this repository: its metadata, its files and its agreement with the stacks."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from .stack import Pin, Slice, Stacks


class _Project(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    dependencies: tuple[str, ...] = ()
    extras: dict[str, tuple[str, ...]] = msgspec.field(
        name="optional-dependencies", default_factory=dict
    )


class _Pyproject(msgspec.Struct, frozen=True, kw_only=True):
    project: _Project


@dataclass(frozen=True)
class Package:
    """What a pyproject.toml says; `optional` joins the requirements of all extras."""

    folder: Path
    distribution: str
    version: Version
    dependencies: tuple[Requirement, ...]
    optional: tuple[Requirement, ...]

    @classmethod
    def read(cls, folder: Path) -> Package:
        project = msgspec.toml.decode(
            (folder / "pyproject.toml").read_bytes(), type=_Pyproject
        ).project
        return cls(
            folder=folder,
            distribution=canonicalize_name(project.name),
            version=Version(project.version),
            dependencies=tuple(Requirement(text) for text in project.dependencies),
            optional=tuple(
                Requirement(text) for texts in project.extras.values() for text in texts
            ),
        )

    def files(self) -> list[Path]:
        """The files that git tracks or would track, relative to the folder, sorted."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        names = sorted({name for name in listed.split("\0") if name})
        return [Path(name) for name in names if (self.folder / name).is_file()]

    def digest(self) -> str:
        """A SHA-256 over the names and the contents of files()."""
        total = hashlib.sha256()
        for file in self.files():
            content = hashlib.sha256((self.folder / file).read_bytes()).hexdigest()
            total.update(f"{content} {file.as_posix()}\n".encode())
        return total.hexdigest()


def disagreements(stacks: Stacks, root: Path) -> list[str]:
    """Where the stacks and the packages' own pyproject.toml differ, one line each."""
    packages = {entry.id: Package.read(root / entry.package) for entry in stacks.slices.values()}
    found: list[str] = []
    for entry in stacks.slices.values():
        place = f"{entry.package}/pyproject.toml"
        found += [f"{place}: {line}" for line in _differences(entry, packages)]
    return found


def _differences(entry: Slice, packages: dict[str, Package]) -> Iterator[str]:
    package = packages[entry.id]
    by_distribution = {other.distribution: slice_id for slice_id, other in packages.items()}
    if package.distribution != entry.distribution:
        yield f"project.name: {package.distribution!r}, the stack says {entry.distribution!r}"
    siblings = {
        canonicalize_name(requirement.name): requirement
        for requirement in package.dependencies
        if canonicalize_name(requirement.name).startswith("kvstrata-")
    }
    declared = {packages[required].distribution for required in entry.requires}
    for name in sorted(declared - siblings.keys()):
        yield f"project.dependencies: {name!r} is missing, the stack requires it"
    for name in sorted(siblings.keys() - declared):
        yield f"project.dependencies: {name!r} is not among `requires` in the stack"
    for name, requirement in sorted(siblings.items()):
        if name not in by_distribution:
            continue
        version = packages[by_distribution[name]].version
        if not requirement.specifier.contains(version):
            yield f"project.dependencies: '{requirement}' leaves out {version}, the present one"
        if any(part.operator in {"==", "==="} for part in requirement.specifier):
            yield f"project.dependencies: '{requirement}' pins a sibling; use a compatible range"
    pinned = {
        f"{canonicalize_name(requirement.name)}{requirement.specifier}"
        for requirement in (*package.dependencies, *package.optional)
        if not requirement.name.startswith("kvstrata-")
        and any(part.operator in {"==", "<="} for part in requirement.specifier)
    }
    pins = {_requirement(pin) for pin in entry.pins}
    for text in sorted(pins - pinned):
        yield f"project: no requirement '{text}', the stack pins it"
    for text in sorted(pinned - pins):
        yield f"project: '{text}' is not among `pins` in the stack"


def _requirement(pin: Pin) -> str:
    """What a package requires for a pin: one version, or the range from the first to the last."""
    versions = sorted(map(Version, pin.versions))
    text = f"=={versions[0]}" if not pin.also else f">={versions[0]},<={versions[-1]}"
    return f"{canonicalize_name(pin.distribution)}{SpecifierSet(text)}"
