# SPDX-License-Identifier: Apache-2.0
"""The stack as mails: written with their base, and applied to a clean tree, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .branch import Branch
from .error import ExportError
from .git import Repository


def write(branch: Branch, folder: Path) -> list[Path]:
    """One patch for each layer, bottom up, which names the base it was made on."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.patch"):
        old.unlink()
    options = ["--quiet", "--keep-subject", f"--base={branch.base.commit}", "--output-directory"]
    revisions = f"{branch.base.commit}..{branch.tip}"
    branch.base.repository.run("format-patch", *options, str(folder), revisions)
    return sorted(folder.glob("*.patch"))


def apply(branch: Branch, patches: Sequence[Path], folder: Path) -> Repository:
    """Apply the patches in a clean worktree at the base.

    Raises ExportError if one does not apply, or gives another tree than its layer.
    """
    applied = branch.base.repository.worktree(folder, branch.base.commit)
    for commit, patch in zip(branch.commits, patches, strict=True):
        am(applied, patch)
        if applied.tree("HEAD") != commit.tree:
            reason = f"gives tree {applied.tree('HEAD')}, the layer has {commit.tree}"
            raise ExportError(patch.name, commit.slice.id, reason, "look for a file git changes")
        if not applied.is_clean():
            raise ExportError(patch.name, commit.slice.id, "leaves a dirty tree", "see git status")
    return applied


def am(repository: Repository, patch: Path) -> None:
    """Apply one patch; raises ExportError, with the tree as it was, if it does not apply."""
    try:
        repository.run("am", "--quiet", "--keep", str(patch))
    except ExportError as error:
        repository.run("am", "--abort")
        fix = "apply the layers below it first"
        raise ExportError(patch.name, "", f"does not apply: {error.reason}", fix) from error


def independent(branch: Branch, patches: Sequence[Path], folder: Path) -> Iterator[tuple[str, str]]:
    """Pairs of neighbours, the lower slice first, of which the upper applies without the lower."""
    for lower, upper, patch in zip(branch.commits, branch.commits[1:], patches[1:], strict=False):
        bare = branch.base.repository.worktree(folder, lower.parent)
        try:
            am(bare, patch)
        except ExportError:
            continue
        yield lower.slice.id, upper.slice.id
