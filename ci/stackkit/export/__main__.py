# SPDX-License-Identifier: Apache-2.0
"""`python -m stackkit.export`, which the sessions export-<slice> and apply-<slice> call."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..error import StackkitError
from ..stack import Upstream
from ..workspace import Workspace
from . import patches
from .base import Base, of_clone, of_installed, of_sdist
from .branch import Branch, build
from .declared import stack_of
from .error import ExportError
from .git import Repository
from .ready import ready
from .rebase import rebase

RELEASED = "released"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m stackkit.export", allow_abbrev=False)
    parser.add_argument("command", choices=("export", "apply"))
    parser.add_argument("slice")
    parser.add_argument("--root", type=Path, required=True, help="the checkout")
    parser.add_argument("--upstream", default=RELEASED, help="a clone, or 'released'")
    parser.add_argument("--base", help="a newer commit of the clone, or a newer release")
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="RELEASE=PLACE",
        help="where a release is: a site-packages folder, or an sdist",
    )
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except StackkitError as fault:
        print(fault, file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    workspace = Workspace.open(options.root)
    upstream, slices = stack_of(workspace.stacks, workspace.root, options.slice)
    output = workspace.root / "build" / options.command / options.slice
    shutil.rmtree(output, ignore_errors=True)
    work = output / "repository"
    work.mkdir(parents=True)
    bases = _Bases(upstream, options.upstream, options.source, Repository.make(work))
    base = bases.make(upstream.release if options.upstream == RELEASED else None)
    branch = build(base, slices)
    print(_stats(branch))
    if options.base:
        result = rebase(branch, bases.make(options.base), slices)
        (output / "range-diff.txt").write_text(result.range_diff(), encoding="utf-8")
        print(result.report())
        return 1 if result.refused else 0
    mails = patches.write(branch, output / "patches")
    if options.command == "apply":
        applied = patches.apply(branch, mails, output / "applied")
        for lower, upper in patches.independent(branch, mails, output / "without"):
            print(f"{upper} applies without {lower}: only its tests need it")
        record = ready(applied.folder, base, slices[-1], output)
        (output / "applied.json").write_bytes(msgspec.json.encode(record))
        count = "1 patch" if len(mails) == 1 else f"{len(mails)} patches"
        print(f"{count} applied to {base.label}: the tree after each is that of its layer")
    print(f"{output.relative_to(workspace.root)} has the repository and the patches")
    return 0


class _Bases:
    def __init__(
        self, upstream: Upstream, chosen: str, sources: Sequence[str], work: Repository
    ) -> None:
        self._upstream = upstream
        self._chosen = chosen
        self._sources = dict(each.partition("=")[::2] for each in sources)
        self._work = work

    def make(self, wanted: str | None) -> Base:
        """A base in the repository: a release, or a commit of the clone."""
        if self._chosen != RELEASED:
            return of_clone(Path(self._chosen).resolve(), self._upstream, wanted, self._work)
        place = self._sources.get(wanted or "")
        if place is None:
            known = ", ".join(self._sources) or "none"
            reason = f"no such release here; known are {known}"
            raise ExportError(self._upstream.id, wanted or "", reason, "name one, or give a clone")
        make = of_installed if Path(place).is_dir() else of_sdist
        return make(Path(place), self._upstream, str(wanted), self._work)


def _stats(branch: Branch) -> str:
    parts = [f"on {branch.base.label}, {branch.base.commit[:12]}"]
    for commit in branch.commits:
        parts += [f"{commit.slice.id}: {commit.slice.layer.subject}", commit.stat.rstrip()]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
