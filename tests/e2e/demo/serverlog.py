# SPDX-License-Identifier: Apache-2.0
"""What the backend says about its transfers in a server's log."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_TRANSFER = re.compile(r"\bkvcr (?P<kind>restore|backup) (?P<fields>\w+=.*)")
_RANK = re.compile(r"^\[[^]]* TP(\d+)\]")
_READY = re.compile(r"\bkvcr ready endpoint=")
_UNREACHABLE = re.compile(r"\bkvcr peer unreachable endpoint=")


class LogFormatError(ValueError):
    """A transfer's line lacks a field that the demo counts with, or it is no number."""


@dataclass(frozen=True)
class Restore:
    """One read of a rank into its host pages; counts are pages."""

    rank: int
    pages: int
    restored: int
    from_own: int
    from_peer: int
    duration_ms: float


@dataclass(frozen=True)
class Backup:
    """One copy of a rank's host pages into its KVCR's DRAM; counts are pages."""

    rank: int
    pages: int
    held: int
    duration_ms: float


@dataclass(frozen=True)
class Lines:
    """Part of a log; a stretch of text without its unfinished last line."""

    text: tuple[str, ...]

    def restores(self) -> tuple[Restore, ...]:
        return tuple(
            Restore(
                rank=rank,
                pages=_count(fields, "pages"),
                restored=_count(fields, "restored"),
                from_own=_count(fields, "from_dram"),
                from_peer=_count(fields, "from_peer"),
                duration_ms=_number(fields, "ms"),
            )
            for rank, fields in _transfers(self.text, "restore")
        )

    def backups(self) -> tuple[Backup, ...]:
        return tuple(
            Backup(
                rank=rank,
                pages=_count(fields, "pages"),
                held=_count(fields, "held"),
                duration_ms=_number(fields, "ms"),
            )
            for rank, fields in _transfers(self.text, "backup")
        )

    def started_backends(self) -> frozenset[int]:
        """The ranks whose backend became ready."""
        return frozenset(_rank(line) for line in self.text if _READY.search(line))

    def peer_unreachable(self) -> bool:
        return any(_UNREACHABLE.search(line) for line in self.text)


@dataclass(frozen=True)
class ServerLog:
    """The growing log file of one server."""

    path: Path

    def end(self) -> int:
        """The position behind what is written so far, in bytes."""
        return self.path.stat().st_size

    def since(self, position: int) -> Lines:
        """The whole lines behind a position."""
        with self.path.open("rb") as log:
            log.seek(position)
            written, _, _ = log.read().rpartition(b"\n")
        return Lines(tuple(written.decode(errors="replace").splitlines()))


def _rank(line: str) -> int:
    """Which rank wrote a line; the only one of a server leaves it out."""
    found = _RANK.match(line)
    return 0 if found is None else int(found[1])


def _transfers(lines: Iterable[str], kind: str) -> Iterator[tuple[int, dict[str, str]]]:
    for line in lines:
        found = _TRANSFER.search(line)
        if found is not None and found["kind"] == kind:
            words = (word.partition("=") for word in found["fields"].split())
            yield _rank(line), {name: value for name, _, value in words}


def _count(fields: dict[str, str], name: str) -> int:
    return int(_number(fields, name))


def _number(fields: dict[str, str], name: str) -> float:
    try:
        return float(fields[name])
    except KeyError:
        raise LogFormatError(f"a kvcr line has no {name}=, only {', '.join(fields)}") from None
    except ValueError:
        raise LogFormatError(f"a kvcr line has {name}={fields[name]!r}, not a number") from None
