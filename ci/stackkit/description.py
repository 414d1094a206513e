# SPDX-License-Identifier: Apache-2.0
"""The text of a slice's pull request: the author's words, and rows of the evidence alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Annotated

import msgspec

from .error import StackkitError
from .stack import HOST, PullRequest, Slice, Text
from .standing import Standing, standings
from .workspace import Workspace

MOST_LINES = 59

_TEMPLATES = Path(__file__).with_name("descriptions")
_HEAD = "| gate | result | passed/failed/skipped | hardware | tree | date |"
_RULE = "| --- | --- | --- | --- | --- | --- |"
_TABLE_ROW = re.compile(r"\s*\|")
_CLAIM = re.compile(
    r"""\d[\d,.]*\s*(?:
        (?:\w+\s+)?tests?\b | (?:(?:are|were|have)\s+)?(?:passed|failed|skipped|green)\b
        | [x×]\s(?:faster|slower|less|more|speed) | \s*%
    )""",
    re.VERBOSE | re.IGNORECASE,
)


class DescriptionError(StackkitError):
    """A description that says what the evidence does not, or that is too long."""


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the author of a slice says of it, in packages/<slice>/upstream/description.toml."""

    motivation: Text
    changes: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    limits: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]

    @classmethod
    def read(cls, path: Path) -> Words:
        """Raises DescriptionError, also for words that make a claim about tests or speed."""
        place = "/".join(path.parts[-3:])
        try:
            words = msgspec.toml.decode(path.read_bytes(), type=cls)
        except (FileNotFoundError, msgspec.MsgspecError) as error:
            raise DescriptionError(f"{place}: {error}") from error
        for text in (words.motivation, *words.changes, *words.limits):
            for line in text.splitlines():
                _refuse_claims(place, line)
            if any(_TABLE_ROW.match(line) for line in text.splitlines()):
                raise DescriptionError(f"{place}: a table row; rows come from the evidence alone")
        return words


def describe(workspace: Workspace, slice_id: str, *, signer: str = "") -> str:
    """The description, at most MOST_LINES long; raises DescriptionError and EvidenceError.

    `signer` is "Name <address>", needed only where the upstream asks for a sign-off.
    """
    entry = workspace.stacks.slices[slice_id]
    request = _request(entry)
    words = Words.read(workspace.root / entry.package / "upstream" / "description.toml")
    template = _TEMPLATES / f"{request.template}.md"
    if not template.is_file():
        known = ", ".join(repr(path.stem) for path in sorted(_TEMPLATES.glob("*.md")))
        raise DescriptionError(f"{slice_id}: no template {request.template!r}; there are {known}")
    text = Template(template.read_text(encoding="utf-8")).substitute(
        title=title(workspace, slice_id),
        motivation=_joined(words.motivation),
        changes=_bullets(words.changes),
        validation="\n".join(_validation(list(standings(workspace, slice_id)))),
        scope=_bullets(_scope(workspace, entry)),
        limits=_bullets(words.limits),
        sign_off=_sign_off(workspace, slice_id, signer),
    )
    lines = text.rstrip().splitlines()
    if len(lines) > MOST_LINES:
        raise DescriptionError(f"{slice_id}: {len(lines)} lines, at most {MOST_LINES}; shorten it")
    return "\n".join(lines) + "\n"


def title(workspace: Workspace, slice_id: str) -> str:
    """`[Series][k/N] Title`, numbered among the slices that go to the same upstream."""
    series = workspace.stacks.series(slice_id)
    request = _request(workspace.stacks.slices[slice_id])
    upstream = workspace.stacks.upstream(slice_id)
    place = [entry.id for entry in series].index(slice_id) + 1
    named = f"[{upstream.series}]" if upstream is not None and upstream.series else ""
    return f"{named}[{place}/{len(series)}] {request.title}"


def check(workspace: Workspace, slice_id: str, text: str) -> None:
    """Raise DescriptionError unless `text`, as a person edited it, has the evidence's rows.

    Every table row must be one of them, none may be missing, and no other line may count tests.
    """
    rows = [_row(each) for each in standings(workspace, slice_id)]
    lines = [line.strip() for line in text.splitlines()]
    for line in lines:
        if _TABLE_ROW.match(line):
            if line not in {_HEAD, _RULE, *rows}:
                raise DescriptionError(f"{slice_id}: not in the evidence: {line}")
        else:
            _refuse_claims(slice_id, line)
    for row in rows:
        if row not in lines:
            raise DescriptionError(f"{slice_id}: left out: {row}")
    if len(lines) > MOST_LINES:
        raise DescriptionError(f"{slice_id}: {len(lines)} lines, at most {MOST_LINES}")


def _request(entry: Slice) -> PullRequest:
    if entry.pull_request is None:
        raise DescriptionError(f"{entry.id}: no `pull_request` in its stack file")
    return entry.pull_request


def _refuse_claims(place: str, line: str) -> None:
    found = _CLAIM.search(line)
    if found:
        raise DescriptionError(
            f"{place}: {found[0]!r} is a claim beside the evidence; leave it to the table"
        )


def _validation(found: list[Standing]) -> list[str]:
    commands = dict.fromkeys(each.row.command for each in found if each.row is not None)
    listed = [f"Run again with {' and '.join(f'`{each}`' for each in commands)}."]
    return [_HEAD, _RULE, *map(_row, found), *(["", *listed] if commands else [])]


def _row(each: Standing) -> str:
    result = f"{each.result}: {each.reason}" if each.reason else each.result
    cells = (each.name, result, each.counts, each.machine, each.short_tree, each.date)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _scope(workspace: Workspace, entry: Slice) -> Iterable[str]:
    below = [each for each in workspace.stacks.series(entry.id) if each.id in entry.requires]
    if below:
        number = _request(below[-1]).number
        name = f"#{number}" if number else title(workspace, below[-1].id)
        yield f"Stacked on {name}; please review the last commit alone."
    else:
        yield "Stacked on nothing: the lowest of its series."
    pins = [pin for pin in entry.pins if pin.distribution != HOST]
    if pins:
        named = ", ".join(f"{pin.distribution} {' or '.join(pin.versions)}" for pin in pins)
        yield f"Developed against {named}."
    if entry.releases:
        yield f"Developed against SGLang {' and '.join(entry.releases)}."


def _sign_off(workspace: Workspace, slice_id: str, signer: str) -> str:
    upstream = workspace.stacks.upstream(slice_id)
    if upstream is None or not upstream.sign_off:
        return ""
    if not signer:
        raise DescriptionError(
            f"{slice_id}: {upstream.id} asks for a sign-off; set user.name and user.email in git"
        )
    return f"\nSigned-off-by: {signer}"


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_joined(text)}" for text in texts)


def _joined(text: str) -> str:
    return " ".join(text.split())
