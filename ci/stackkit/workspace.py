# SPDX-License-Identifier: Apache-2.0
"""Where things lie in a checkout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .kvcached_host import KvcachedHost
from .package import Package
from .stack import HOST, Stacks, load


@dataclass(frozen=True)
class Workspace:
    """A checkout with its stacks; everything that is made goes to build/ and .nox/."""

    root: Path
    stacks: Stacks

    @classmethod
    def open(cls, root: Path) -> Workspace:
        """Raises StackError."""
        return cls(root, load(root / "stacks"))

    @property
    def settings(self) -> Path:
        return self.root / "pyproject.toml"

    @property
    def results(self) -> Path:
        return self.root / "build" / "results"

    def logs(self, run: str) -> Path:
        """Where pytest's own reports of a run stay."""
        return self.results / "logs" / run

    @property
    def evidence(self) -> Path:
        return self.root / "stacks" / "evidence"

    @property
    def environments(self) -> Path:
        return self.root / ".nox"

    def lock(self, name: str) -> Path:
        return self.root / "ci" / "constraints" / f"{name}.txt"

    def release_lock(self, release: str) -> Path:
        """What a release of the host other than the base environment's needs of its own."""
        return self.lock(f"{HOST}-{release}")

    def package(self, slice_id: str) -> Package:
        return Package.read(self.root / self.stacks.slices[slice_id].package)

    @property
    def host(self) -> Package:
        """What runs the real SGLang without a GPU: a test tool, never a slice."""
        return Package.read(self.root / "ci" / "host")

    @property
    def kvcached_host(self) -> KvcachedHost:
        return KvcachedHost(
            sources=self.root / "ci" / "host" / "kvcached_host",
            lock=self.lock("kvcached"),
            folder=self.root / "build" / "wheels" / "kvcached-host",
        )

    def wheels(self, package: Package) -> Path:
        return self.root / "build" / "wheels" / package.distribution.removeprefix("kvstrata-")
