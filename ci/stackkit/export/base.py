# SPDX-License-Identifier: Apache-2.0
"""What a stack is built on: a commit of a clone, or a release unpacked into a repository."""

from __future__ import annotations

import csv
import io
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..stack import Upstream
from .error import ExportError
from .git import Repository

# Built for one machine: needed to run the tree, no part of it.
_BUILT = (".so", ".pyc", ".pyd")


@dataclass(frozen=True)
class Base:
    """A commit that layers can be put on.

    Args:
        repository: has the commit, checked out; never the clone of somebody else.
        commit: its id.
        label: what people call it, such as "sglang 0.5.20".
        built: files beside the tree that running it needs, by their path in the tree.
    """

    repository: Repository
    commit: str
    label: str
    built: tuple[tuple[str, Path], ...] = ()


def of_clone(clone: Path, upstream: Upstream, revision: str | None, into: Repository) -> Base:
    """A commit of a clone: `revision`, or the one that the stack pins, or the release's tag.

    The clone is read and never written to. Raises ExportError for a dirty clone, an unknown commit,
    or a pinned one with another tree.
    """
    theirs = Repository(clone)
    if not (clone / ".git").exists():
        fix = f"git clone {upstream.repository} first"
        raise ExportError(str(clone), "", "no clone there", fix)
    if not theirs.is_clean():
        raise ExportError(str(clone), "", "dirty tree", "commit or stash what is changed there")
    wanted = revision or upstream.base_commit or f"v{upstream.release}"
    commit, tree = theirs.id(f"{wanted}^{{commit}}"), theirs.tree(wanted)
    if commit == upstream.base_commit and upstream.base_tree not in {None, tree}:
        reason = f"tree {tree}, the stack pins {upstream.base_tree}"
        raise ExportError(str(clone), wanted, reason, "correct base_tree in stacks/")
    objects = theirs.run("rev-parse", "--path-format=absolute", "--git-path", "objects")
    alternates = into.run("rev-parse", "--path-format=absolute", "--git-path", "objects/info")
    Path(alternates.strip(), "alternates").write_text(objects, encoding="utf-8")
    into.run("checkout", "--quiet", "--force", "--detach", commit)
    return Base(into, commit, f"{upstream.id} {wanted}")


def of_installed(site_packages: Path, upstream: Upstream, release: str, into: Repository) -> Base:
    """An installed wheel of a project as the project's own repository has it: under python/.

    Commits the tree on top of what `into` has. Raises ExportError for another release.
    """
    info = site_packages / f"{upstream.id}-{release}.dist-info"
    if not info.is_dir():
        raise ExportError(
            str(site_packages),
            "",
            f"{upstream.id} {release} is not installed there",
            "run `nox -s base`, or name a release that the sessions have",
        )
    _empty(into)
    built = []
    for row in csv.reader(io.StringIO((info / "RECORD").read_text(encoding="utf-8"))):
        file = PurePosixPath(row[0])
        if file.parts[0] != upstream.id or "__pycache__" in file.parts:
            continue
        target = PurePosixPath("python") / file
        if file.suffix in _BUILT:
            built.append((str(target), site_packages / file))
            continue
        place = into.folder / target
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(site_packages / file, place)
    return _committed(into, f"{upstream.id} {release}", tuple(built))


def of_sdist(archive: Path, upstream: Upstream, release: str, into: Repository) -> Base:
    """An unpacked source distribution, committed on top of what `into` has.

    Raises ExportError for an archive of another project or release.
    """
    top = f"{upstream.id}-{release}"
    if not archive.is_file():
        raise ExportError(str(archive), "", "no such archive", f"run `nox -s {_fetch(upstream)}`")
    _empty(into)
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            inside = PurePosixPath(member.name)
            if inside.parts[0] != top or ".." in inside.parts:
                raise ExportError(
                    str(archive), member.name, f"outside {top}/", f"give the sdist of {top}"
                )
            content = packed.extractfile(member) if member.isfile() else None
            if content is not None:
                place = into.folder / PurePosixPath(*inside.parts[1:])
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.read())
    return _committed(into, f"{upstream.id} {release}", ())


def _fetch(upstream: Upstream) -> str:
    return f"fetch-{upstream.id}"


def _empty(into: Repository) -> None:
    for entry in into.folder.iterdir():
        if entry.name == ".git":
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _committed(into: Repository, label: str, built: tuple[tuple[str, Path], ...]) -> Base:
    return Base(into, into.commit(f"{label}, as released\n"), label, built)
