# SPDX-License-Identifier: Apache-2.0
"""The branches of a stack: one commit for each slice on its upstream's base, bottom up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .base import Base
from .error import ExportError
from .layer import Layer


@dataclass(frozen=True)
class Slice:
    """A slice that is exported.

    Args:
        package: folder of the package.
        root: the checkout.
        tree: id of the package's tree, as its files are now.
        merged: whether the upstream has it already.
    """

    id: str
    distribution: str
    version: str
    package: Path
    root: Path
    tree: str
    layer: Layer
    merged: bool = False

    @property
    def message(self) -> str:
        origin = f"Origin: {self.distribution} {self.version}, tree {self.tree}"
        return f"{self.layer.subject}\n\n{self.layer.body.strip()}\n\n{origin}\n"


@dataclass(frozen=True)
class Commit:
    """A slice's commit on the one below it."""

    slice: Slice
    parent: str
    commit: str
    tree: str
    stat: str


@dataclass(frozen=True)
class Branch:
    base: Base
    commits: tuple[Commit, ...]

    @property
    def tip(self) -> str:
        return self.commits[-1].commit if self.commits else self.base.commit


def build(base: Base, slices: Sequence[Slice]) -> Branch:
    """Commit each slice that is not merged, in the order given, and name the branch after the last.

    Raises ExportError at the first file or edit that cannot be made.
    """
    repository = base.repository
    repository.run("checkout", "--quiet", "--force", "--detach", base.commit)
    repository.run("clean", "--quiet", "-d", "--force")
    commits: list[Commit] = []
    for entry in slices:
        if entry.merged:
            continue
        parent = repository.id("HEAD")
        entry.layer.write(entry.package, entry.root, repository.folder)
        commit = repository.commit(entry.message)
        check_words(base, entry, parent, commit)
        stat = repository.run("diff", "--stat=100", parent, commit)
        commits.append(Commit(entry, parent, commit, repository.tree(commit), stat))
    if commits:
        repository.run("branch", "--force", f"export/{slices[-1].id}", commits[-1].commit)
    return Branch(base, tuple(commits))


def check_words(base: Base, entry: Slice, parent: str, commit: str) -> None:
    """Raise ExportError for an added line about the plugin or with a path of this machine."""
    unwanted = (*entry.layer.unwanted, str(entry.root))
    diff = base.repository.run("diff", "--unified=0", "--no-color", parent, commit)
    file = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif line.startswith("+"):
            for word in unwanted:
                if word in line:
                    fix = "map the word in `names`, or leave the line out"
                    raise ExportError(file, word, f"in the added line {line[1:].strip()!r}", fix)
