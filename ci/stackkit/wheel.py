# SPDX-License-Identifier: Apache-2.0
"""Wheels that are the same bytes wherever they are built, and that are never used when stale."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .error import StackkitError
from .package import Package

# A constant: two commits with the same package give the same wheel.
SOURCE_DATE_EPOCH = "1767225600"


class WheelError(StackkitError):
    """A wheel that cannot be built, or cannot be built twice alike."""


class StaleWheelError(WheelError):
    """A wheel that was not built from the files as they are now."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: str
    sha256: str
    package_digest: str


@dataclass(frozen=True)
class Wheel:
    """A built wheel; `package_digest` is that of the package's files at the time."""

    path: Path
    sha256: str
    package_digest: str

    @classmethod
    def build(cls, package: Package, into: Path, *, python: Path) -> Wheel:
        """Build twice, in two folders, with `python`, which has hatchling."""
        shutil.rmtree(into, ignore_errors=True)
        digest = package.digest()
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            one = _build(package, Path(first), python)
            two = _build(package, Path(second), python)
            if one.name != two.name or one.read_bytes() != two.read_bytes():
                raise WheelError(f"{package.distribution}: two builds differ: {one.name}")
            into.mkdir(parents=True)
            path = Path(shutil.copy(one, into))
        record = _Record(path.name, _sha256(path), digest)
        (into / "record.json").write_bytes(msgspec.json.encode(record))
        return cls(path, record.sha256, record.package_digest)

    @classmethod
    def current(cls, package: Package, folder: Path) -> Wheel:
        """The wheel in `folder`; StaleWheelError unless it was built from the present files."""
        fix = f"run `nox -s build-{folder.name}`"
        try:
            record = msgspec.json.decode((folder / "record.json").read_bytes(), type=_Record)
            built = _sha256(folder / record.file)
        except FileNotFoundError as error:
            raise StaleWheelError(f"{package.distribution}: no wheel in {folder}; {fix}") from error
        if built != record.sha256:
            raise StaleWheelError(
                f"{package.distribution}: {record.file} changed since its build; {fix}"
            )
        if package.digest() != record.package_digest:
            raise StaleWheelError(
                f"{package.distribution}: {package.folder} changed since {record.file} was built; "
                f"{fix}"
            )
        return cls(folder / record.file, record.sha256, record.package_digest)


def _build(package: Package, folder: Path, python: Path) -> Path:
    source = folder / "source"
    for file in package.files():
        target = source / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package.folder / file, target)
    wheels = folder / "wheels"
    command = [str(python), "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(
        [*command, "--directory", str(wheels)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise WheelError(f"{package.distribution}: the build failed\n{done.stdout}{done.stderr}")
    (wheel,) = wheels.glob("*.whl")
    return wheel


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
