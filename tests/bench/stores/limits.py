# SPDX-License-Identifier: Apache-2.0
"""What is wanted of KVCR's restores and backups, and what was seen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .family import COMBINED, SIDECAR
from .grid import HEADLINE, MANY, Point
from .samples import Operation, Results, Series


@dataclass(frozen=True)
class Limit:
    """One number to reach.

    Args:
        goal: what is to be reached; of several limits with one goal, one is enough.
        seen: the number, None where something that it needs was not measured.
        wanted: at least this much, or at most if `is_ceiling`.
        unit: "x" for a ratio, "ms" for milliseconds.
        against: what it is compared with.
    """

    goal: str
    seen: float | None
    wanted: float
    unit: str
    against: str
    is_ceiling: bool = False

    @property
    def met(self) -> bool:
        if self.seen is None:
            return False
        return self.seen <= self.wanted if self.is_ceiling else self.seen >= self.wanted

    @property
    def verdict(self) -> str:
        """met, missed, or not measured."""
        if self.seen is None:
            return "not measured"
        return "met" if self.met else "missed"


def limits(results: Results, product: str) -> tuple[Limit, ...]:
    """Every limit, for the contenders of one family."""
    local, peer = f"{product} local", f"{product} peer"
    faster = _Comparison(results)
    return (
        faster("local restore", local, "memcpy local", "get", 0.7),
        faster("local restore ahead of mooncake", local, "mooncake local", "get", 1.0),
        faster("local restore ahead of file", local, "file local", "get", 1.0),
        faster("peer restore", peer, "raw kvcr peer", "get", 0.9),
        faster("peer restore ahead of mooncake", peer, "mooncake peer", "get", 1.2),
        faster("backup of warm pages", local, "memcpy local", "set", 0.8),
        faster("backup of warm pages", local, "raw kvcr local", "set", 0.9),
        Limit(
            "first backup",
            _first_over_later(results, local),
            1.5,
            "x",
            "later ones",
            is_ceiling=True,
        ),
        faster("combined IO", f"{COMBINED} local", f"{SIDECAR} local", "get", 1.3),
        replace(faster, point=MANY)(
            "combined IO", f"{COMBINED} local", f"{SIDECAR} local", "get", 1.3
        ),
        Limit(
            f"exists, {MANY.pages:,} pages",
            _milliseconds(results.find(local, MANY, "exists")),
            1.0,
            "ms",
            "",
            is_ceiling=True,
        ),
    )


def missed_goals(found: Sequence[Limit]) -> tuple[str, ...]:
    """The goals of which no limit was met."""
    goals = dict.fromkeys(limit.goal for limit in found)
    met = {limit.goal for limit in found if limit.met}
    return tuple(goal for goal in goals if goal not in met)


@dataclass(frozen=True)
class _Comparison:
    """How many times as fast as another contender, when both are warm."""

    results: Results
    point: Point = HEADLINE

    def __call__(
        self, goal: str, product: str, against: str, operation: Operation, wanted: float
    ) -> Limit:
        ours = self.results.find(product, self.point, operation)
        theirs = self.results.find(against, self.point, operation)
        return Limit(goal, _ratio(theirs, ours), wanted, "x", f"{against}, {self.point}")


def _ratio(numerator: Series | None, denominator: Series | None) -> float | None:
    if numerator is None or denominator is None:
        return None
    return numerator.p50_seconds / denominator.p50_seconds


def _first_over_later(results: Results, contender: str) -> float | None:
    cold = results.find(contender, HEADLINE, "set", "cold")
    return _ratio(cold, results.find(contender, HEADLINE, "set", "warm"))


def _milliseconds(series: Series | None) -> float | None:
    return None if series is None else series.p50_seconds * 1000
