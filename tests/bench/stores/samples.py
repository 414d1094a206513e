# SPDX-License-Identifier: Apache-2.0
"""What was measured: how long each call took."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .grid import Point

Operation = Literal["set", "get", "exists"]
State = Literal["cold", "warm"]

OPERATIONS: tuple[Operation, ...] = ("set", "get", "exists")


@dataclass(frozen=True)
class Series:
    """The calls of one kind, in seconds, in the order in which they were made.

    A call is cold if it is the contender's first of its operation since it was started.
    """

    contender: str
    point: Point
    operation: Operation
    state: State
    seconds: tuple[float, ...]

    @property
    def p50_seconds(self) -> float:
        return quantile(self.seconds, 0.50)

    @property
    def p99_seconds(self) -> float:
        """Of fewer than a hundred calls, the longest."""
        return quantile(self.seconds, 0.99)

    @property
    def gigabytes_per_second(self) -> float | None:
        """All bytes over the median, in units of 1e9; None for a query, which moves none."""
        if self.operation == "exists":
            return None
        return self.point.total_bytes / self.p50_seconds / 1e9


def quantile(values: Iterable[float], share: float) -> float:
    """The least value that a share of all values does not exceed; raises ValueError for none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Results:
    """A whole run.

    Args:
        series: everything that was timed.
        verified: how many points of each contender came back with every byte right.
        damaged: what came back wrong, in words.
        not_run: why a contender was left out, or ended early.
        failed: the contenders that ended early.
        machine: in words.
    """

    series: tuple[Series, ...]
    verified: dict[str, int]
    damaged: tuple[str, ...]
    not_run: dict[str, str]
    failed: tuple[str, ...]
    machine: dict[str, str]

    def find(
        self, contender: str, point: Point, operation: Operation, state: State = "warm"
    ) -> Series | None:
        """The series of a contender, None if it was not measured."""
        return next(
            (
                each
                for each in self.series
                if (each.contender, each.point, each.operation, each.state)
                == (contender, point, operation, state)
            ),
            None,
        )

    @property
    def contenders(self) -> tuple[str, ...]:
        """Whatever was measured, in the order of its first call."""
        return tuple(dict.fromkeys(each.contender for each in self.series))
