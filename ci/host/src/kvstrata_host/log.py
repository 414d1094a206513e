# SPDX-License-Identifier: Apache-2.0
"""What is worth telling of a server's log: the steps of its start, and why it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_TAIL_LINES = 40
_LINE_LIMIT = 400
_DECISIVE_LINES = 5
_DECISIVE = re.compile(r"error|exception|refus|cannot|failed|no module|SystemExit|killed", re.I)
_ARGUMENTS = "server_args="

_MILESTONES = (
    (_ARGUMENTS, "arguments accepted"),
    ("Init torch distributed begin", "process group"),
    ("Load weight begin", "loading weights"),
    ("KV Cache is allocated", "device KV pool allocated"),
    ("hierarchical KV host pool", "host KV pool allocated"),
    ("Uvicorn running", "HTTP up"),
)


class Milestones:
    """Picks the steps of a start out of a growing log, each once."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        self._open = list(_MILESTONES)

    def new(self) -> list[str]:
        """The steps in the whole lines that were added since the last call."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            text = log.read()
        whole, newline, _ = text.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        seen = [step for step in self._open if step[0].encode() in whole]
        self._open = [step for step in self._open if step not in seen]
        return [message for _, message in seen]


def tail(log: Path) -> tuple[str, ...]:
    """The last lines of a log, long ones cut; none if there is no log."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return ()
    lines = [line[:_LINE_LIMIT] for line in text.splitlines() if line.strip()]
    return tuple(lines[-_TAIL_LINES:])


def decisive(lines: Sequence[str]) -> tuple[str, ...]:
    """The lines that tell of a failure, or the last ones if none does."""
    telling = [line for line in lines if _DECISIVE.search(line) and _ARGUMENTS not in line]
    return tuple((telling or lines)[-_DECISIVE_LINES:])
