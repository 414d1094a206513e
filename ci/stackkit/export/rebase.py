# SPDX-License-Identifier: Apache-2.0
"""A stack on a newer base: which edits still apply, which moved, and how the commits differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import Base
from .branch import Branch, Commit, Slice
from .edits import Edit, EditError
from .error import ExportError
from .layer import apply_all
from .places import outlines


@dataclass(frozen=True)
class Fate:
    """What became of one edit.

    Args:
        refusal: why it does not apply, or empty.
        target_changed: whether the definition that it edits differs between the bases.
    """

    slice_id: str
    edit: Edit
    refusal: str
    target_changed: bool

    def __str__(self) -> str:
        if self.refusal:
            state = "REFUSED"
        else:
            state = "applies, target changed" if self.target_changed else "applies"
        place = f"{self.edit.file}: {self.edit.name or '(module)'}"
        kind = type(self.edit).__name__
        reason = f"\n    {self.refusal}" if self.refusal else ""
        return f"{state:<24}{kind:<14}{place}{reason}"


@dataclass(frozen=True)
class Rebase:
    """The same stack on two bases; `new` has the edits that apply, and only those."""

    old: Branch
    new: Branch
    fates: tuple[Fate, ...]

    @property
    def refused(self) -> list[Fate]:
        return [fate for fate in self.fates if fate.refusal]

    def range_diff(self, *options: str) -> str:
        old = f"{self.old.base.commit}..{self.old.tip}"
        new = f"{self.new.base.commit}..{self.new.tip}"
        return self.new.base.repository.run("range-diff", "--no-color", *options, old, new)

    def report(self) -> str:
        """Each edit with its fate, and the range-diff in short."""
        moved = len(self.refused)
        read = sum(fate.target_changed and not fate.refusal for fate in self.fates)
        total = (
            f"{len(self.fates) - moved} of {len(self.fates)} edits apply, {read} of them to a "
            f"target that changed; {moved} refused"
        )
        bases = f"{self.old.base.label} -> {self.new.base.label}"
        commits = self.range_diff("--no-patch").rstrip()
        return "\n".join([bases, *map(str, self.fates), total, commits])


def rebase(old: Branch, base: Base, slices: Sequence[Slice]) -> Rebase:
    """Put the stack on a newer base, as far as its edits apply there.

    Raises ExportError for what is no edit: a new file that the base has by now.
    """
    repository = base.repository
    repository.run("checkout", "--quiet", "--force", "--detach", base.commit)
    fates: list[Fate] = []
    commits: list[Commit] = []
    for entry in slices:
        if entry.merged:
            continue
        parent = repository.id("HEAD")
        fates += _write(entry, old.base, base)
        commit = repository.commit(entry.message)
        stat = repository.run("diff", "--stat=100", parent, commit)
        commits.append(Commit(entry, parent, commit, repository.tree(commit), stat))
    return Rebase(old, Branch(base, tuple(commits)), tuple(fates))


def _write(entry: Slice, old: Base, new: Base) -> list[Fate]:
    """Like Layer.write, but going on after a refusal."""
    layer, tree = entry.layer, new.repository.folder
    own = {file.target for file in layer.files}
    for file in layer.files:
        place = tree / file.target
        if place.exists():
            fix = "give it another place, or mark the slice as merged"
            raise ExportError(file.target, "", "is in the base already", fix)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = layer.translated(file, entry.package, entry.root)
        place.write_text(text, encoding="utf-8")
    changed = {edit for edit in layer.edits if edit.file not in own and _differs(edit, old, new)}
    refusals: dict[Edit, str] = {}

    def refused(error: EditError) -> None:
        refusals[error.edit] = f"{error.reason}; fix: {error.fix}"

    texts = apply_all(layer.edits, tree, refused)
    edited = [(file, text) for file, text in texts.items() if file not in own]
    layer.style.finish(tree, sorted(own), edited, strict=False)
    return [Fate(entry.id, edit, refusals.get(edit, ""), edit in changed) for edit in layer.edits]


def _differs(edit: Edit, old: Base, new: Base) -> bool:
    """Whether the definition that an edit is for is another one in the newer base."""
    if not edit.name:
        return False
    texts = [base.repository.text(base.commit, edit.file) or "" for base in (old, new)]
    return outlines(texts[0], edit.name) != outlines(texts[1], edit.name)
