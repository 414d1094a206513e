# SPDX-License-Identifier: Apache-2.0
"""What a slice puts on its upstream: files under their names there, and edits of what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import libcst as cst

from .edits import Edit, EditError
from .error import ExportError
from .names import Names
from .places import outlines
from .style import Style

Change = Callable[[str], str]


@dataclass(frozen=True)
class File:
    """A file of the package at its place upstream.

    Args:
        source: path in the package, or from the root of the checkout if it starts with a slash.
        target: path in the tree.
        changes: what is done to the text after its names have been changed.
    """

    source: str
    target: str
    changes: tuple[Change, ...] = ()

    def read(self, package: Path, root: Path) -> str:
        """The text as it is here; raises ExportError if there is none."""
        place = root / self.source[1:] if self.source.startswith("/") else package / self.source
        try:
            return place.read_text(encoding="utf-8")
        except FileNotFoundError:
            fix = "correct the file map in upstream/"
            raise ExportError(self.source, "", "no such file in the package", fix) from None


def folder(source: str, target: str, names: str, *changes: Change) -> tuple[File, ...]:
    """Several files of one folder, named with blanks between, each under its own name."""
    return tuple(File(f"{source}/{name}", f"{target}/{name}", changes) for name in names.split())


@dataclass(frozen=True)
class Layer:
    """One commit of the stack.

    Args:
        subject: first line of its message.
        body: what it says below.
        names: what our names are upstream.
        edits: applied in order, after the files are there; of those files too.
        left_out: modules of the slice that are no part of the pull request, each with the reason.
        tested_elsewhere: tests that do not run on an applied tree, each with the reason.
        unwanted: words that no added line may have: what speaks of the plugin.
        helpers: files that only the tests of an applied tree need: never committed; see `checks`.
        checks: edits of the helpers, which are at `checks/` then.
        upstream_tests: tests of the upstream for the files that are edited; run where they are.
    """

    subject: str
    body: str
    names: Names
    style: Style
    files: tuple[File, ...]
    edits: tuple[Edit, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    tested_elsewhere: dict[str, str] = field(default_factory=dict)
    unwanted: tuple[str, ...] = ("kvstrata", "plugin", "seam")
    helpers: tuple[File, ...] = ()
    checks: tuple[Edit, ...] = ()
    upstream_tests: tuple[str, ...] = ()

    def helpers_in(self, folder: str, package: str) -> tuple[File, ...]:
        """The helpers under `folder`, for a layer of another package; this one's is `package`."""
        return tuple(
            replace(
                file,
                source=file.source if file.source.startswith("/") else f"/{package}/{file.source}",
            )
            for file in self.helpers
            if file.target.startswith(f"{folder}/")
        )

    def write(self, package: Path, root: Path, tree: Path) -> Written:
        """Write the files and apply the edits in a tree; raises ExportError at the first refusal.

        Nothing of the upstream may be in the way of a new file.
        """
        new = []
        for file in self.files:
            if (tree / file.target).exists():
                fix = "give it another place, or mark the slice as merged"
                raise ExportError(file.target, "", "is in the base already", fix)
            _write(tree / file.target, self.translated(file, package, root))
            new.append(file.target)
        texts = apply_all(self.edits, tree)
        edited = {file: text for file, text in texts.items() if file not in new}
        self.style.finish(tree, new, list(edited.items()))
        return Written(tuple(new), tuple(edited))

    def translated(self, file: File, package: Path, root: Path) -> str:
        """A file's text under the upstream's names."""
        text = file.read(package, root)
        if file.target.endswith(".py"):
            text = self.names.python(text, _package(file.source))
        else:
            text = self.names.text(text)
        for change in file.changes:
            text = change(text)
        return text


@dataclass(frozen=True)
class Written:
    """The paths that a layer added and those that it edited."""

    new: tuple[str, ...]
    edited: tuple[str, ...]


def apply_all(
    edits: Sequence[Edit], tree: Path, refused: Callable[[EditError], None] | None = None
) -> dict[str, str]:
    """Apply edits in a tree, in order; returns the texts that the edited files had before.

    Args:
        refused: called for each edit that does not apply; without it, the first one is raised.
    """
    before: dict[str, str] = {}
    modules: dict[str, cst.Module] = {}
    for edit in edits:
        try:
            if edit.file not in modules:
                text = _text(edit, tree)
                modules[edit.file] = cst.parse_module(text)
                before[edit.file] = text
            modules[edit.file] = edit.apply(modules[edit.file])
        except EditError as error:
            told = error
            if error.refusal == "missing":
                told = EditError(edit, "missing", error.reason, _elsewhere(edit, tree))
            if refused is None:
                raise told from None
            refused(told)
    for file, module in modules.items():
        (tree / file).write_text(module.code, encoding="utf-8")
    return before


def _text(edit: Edit, tree: Path) -> str:
    try:
        return (tree / edit.file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise EditError(edit, "missing", "no such file in the base") from None


def _elsewhere(edit: Edit, tree: Path) -> str:
    """What to do about a name that is not in its file."""
    found = list(moved_to(edit.name, tree))
    if not found:
        return (
            f"no file has {edit.name or 'it'} now; read what replaced it, and write the edit anew"
        )
    return f"move the edit to {' or '.join(found)}"


def moved_to(name: str, tree: Path) -> Iterator[str]:
    """The files of a tree that define a qualified name."""
    last = name.rpartition(".")[2]
    folders = sorted(each for each in tree.iterdir() if each.is_dir() and each.name[0] != ".")
    for place in (file for each in folders for file in sorted(each.rglob("*.py"))):
        text = place.read_text(encoding="utf-8", errors="replace")
        named = f"def {last}(" in text or f"class {last}" in text
        if named and outlines(text, name):
            yield place.relative_to(tree).as_posix()


def _package(source: str) -> str:
    """The dotted package of a file: what its relative imports start from."""
    parts = PurePosixPath(source.lstrip("/")).parent.parts
    return ".".join(parts[parts.index("src") + 1 :] if "src" in parts else parts)


def _write(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
