# SPDX-License-Identifier: Apache-2.0
"""The run: every contender does the same work in turn, so that a busy machine slows all alike."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hicache import page_hashes

from .family import Family, Place
from .grid import HEADLINE, Point, by_size
from .samples import Operation, Results, Series, State
from .worker import Worker, WorkerError

_FEWEST_ROUNDS = 3
_MOST_ROUNDS = 101
_WARM_UP_PAGES = 64
"""How many pages at most are moved before a warm call."""

_SHARES = 2.0
"""After so many fair shares of a point's time, a contender has had enough of it."""

_HEADLINE_SHARES = 5.0
"""How much more time than another point the headline gets."""

_Key = tuple[str, Point, Operation, State]


@dataclass(frozen=True)
class Plan:
    """How long a run takes.

    Args:
        points: what is moved.
        seconds: for all points, shared by those that are left. A point has its fewest rounds in any
            case. The first start comes before.
        starts: how often the contenders are started for the headline's page size; each start gives
            one cold sample, and its part of the warm ones.
    """

    points: tuple[Point, ...]
    seconds: float
    starts: int


class Entrant:
    """A family that takes part: its processes, and the calls that are made to them."""

    def __init__(self, family: Family, logs: Path) -> None:
        self.family = family
        self._workers: list[Worker] = []
        try:
            for role in ("source", "target")[: 2 if "peer" in family.places else 1]:
                self._workers.append(
                    Worker(
                        f"{family.name} {role}",
                        family.side,
                        family.settings,
                        family.variables,
                        logs,
                    )
                )
        except BaseException:
            self.end()
            raise

    def start(self, page_bytes: int, most: int) -> None:
        """Start both ends on new memory; raises WorkerError."""
        address = self._source.start(page_bytes, most, {})
        if len(self._workers) > 1:
            self._source.call("meet", self._target.start(page_bytes, most, address))

    def stop(self) -> None:
        """Stop both ends; raises WorkerError."""
        for worker in reversed(self._workers):
            worker.stop()

    def pause(self) -> None:
        """Take the processes off the cores, unless they have to go on."""
        if self.family.may_pause:
            for worker in self._workers:
                worker.pause()

    def resume(self) -> None:
        """Let the processes go on."""
        for worker in self._workers:
            worker.resume()

    def end(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()

    def fill(self, pages: int, seed: int) -> None:
        self._source.call("fill", pages, seed)

    def work(self, keys: Sequence[str]) -> dict[tuple[str, Operation], float]:
        """Store, find and read pages once from each place; seconds by contender and operation."""
        family, took = self.family, dict[tuple[str, Operation], float]()
        if family.is_store:
            seconds = self._source.timed("set", keys)
            if "local" in family.places:
                took[family.contender("local"), "set"] = seconds
        for place in family.places:
            contender, reader = family.contender(place), self._reader(place)
            if family.is_store:
                took[contender, "exists"] = reader.timed("exists", keys)
            took[contender, "get"] = reader.timed("get", keys)
        return took

    def forget(self, keys: Sequence[str]) -> None:
        self._source.call("forget", keys)

    def wrong_pages(self, keys: Sequence[str], seed: int) -> dict[str, int]:
        """Read pages into zeroed memory once from each place; how many are not what was stored."""
        pages, wrong = len(keys), {}
        if self.family.is_store:
            self._source.timed("set", keys)
        for place in self.family.places:
            holder = self._target if place == "peer" else self._source
            holder.call("wipe", pages)
            self._reader(place).timed("get", keys)
            found = holder.call("wrong_pages", pages, seed)
            wrong[self.family.contender(place)] = int(str(found))
        return wrong

    @property
    def _source(self) -> Worker:
        return self._workers[0]

    @property
    def _target(self) -> Worker:
        return self._workers[1]

    def _reader(self, place: Place) -> Worker:
        writes = self.family.source_writes
        return self._target if place == "peer" and not writes else self._source


@dataclass
class Run:
    """One run of a plan; `tell` gets a line of progress at a time."""

    plan: Plan
    logs: Path
    tell: Callable[[str], None]
    _seconds: dict[_Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    _verified: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _damaged: list[str] = field(default_factory=list)
    _not_run: dict[str, str] = field(default_factory=dict)
    _failed: list[str] = field(default_factory=list)
    _entrants: list[Entrant] = field(default_factory=list)
    _serial: int = 0
    _done: int = 0
    _deadline: float = 0.0

    def of(self, families: Sequence[Family], machine: Mapping[str, str]) -> Results:
        """Measure all families that can run; every other one is named with its reason."""
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            for family in families:
                if reason := family.why_not():
                    self._leave_out(family, reason)
                else:
                    self._entrants.append(Entrant(family, self.logs))
            for page_bytes, points in by_size(self.plan.points).items():
                self._measure_size(page_bytes, points)
        finally:
            for entrant in self._entrants:
                entrant.end()
        series = [Series(*key, tuple(found)) for key, found in self._seconds.items()]
        return Results(
            tuple(series),
            dict(self._verified),
            tuple(self._damaged),
            dict(self._not_run),
            tuple(self._failed),
            dict(machine),
        )

    def _measure_size(self, page_bytes: int, points: Sequence[Point]) -> None:
        most = points[0].pages
        starts = self.plan.starts if page_bytes == HEADLINE.page_bytes else 1
        for start in range(starts):
            self.tell(f"{points[0]}: starting {len(self._entrants)}")
            self._each(lambda entrant: entrant.start(page_bytes, most))
            self._each(lambda entrant: entrant.fill(most, 0))
            self._deadline = self._deadline or time.monotonic() + self.plan.seconds
            # A process is faster or slower as its memory came to lie: all starts share the first.
            self._measure(points[0], self._share(points[0]) / starts, after_start=True)
            if start + 1 == starts:
                self._verify(points[0])
                for point in points[1:]:
                    self._measure(point, self._share(point), after_start=False)
                    self._verify(point)
            self._each(Entrant.stop)

    def _share(self, point: Point) -> float:
        """Seconds of what is left for a point."""
        left = max(0.0, self._deadline - time.monotonic())
        shares = _HEADLINE_SHARES if point == HEADLINE else 1.0
        others = len(self.plan.points) - self._done - 1
        return left * shares / (shares + others)

    def _measure(self, point: Point, share: float, *, after_start: bool) -> None:
        """Rounds for `share` seconds; the first one `after_start` is cold."""
        began, rounds = time.monotonic(), 0
        taking_part = list(self._entrants)
        spent: dict[Entrant, float] = defaultdict(float)
        while taking_part and rounds < _MOST_ROUNDS:
            for entrant, seconds in self._round(
                point, rounds, taking_part, cold=after_start and rounds == 0
            ).items():
                spent[entrant] += seconds
            rounds += 1
            if rounds >= _FEWEST_ROUNDS:
                if time.monotonic() - began > share:
                    break
                fair = _SHARES * share / max(1, len(self._entrants))
                taking_part = [each for each in taking_part if spent[each] < fair]
            taking_part = [each for each in taking_part if each in self._entrants]
        self.tell(f"{point}: {rounds} rounds in {time.monotonic() - began:.0f} s")

    def _round(
        self, point: Point, number: int, taking_part: Sequence[Entrant], *, cold: bool
    ) -> dict[Entrant, float]:
        """Seconds that each took, with what is not measured.

        A warm turn begins with untimed calls: after the others' turns no cache holds anything of
        this contender, and what is timed would be how much code and data it has.
        """
        before = self._keys(Point(point.page_bytes, min(point.pages, _WARM_UP_PAGES)))
        keys = self._keys(point)
        state: State = "cold" if cold else "warm"
        spent: dict[Entrant, float] = {}

        def work(entrant: Entrant) -> None:
            began = time.monotonic()
            if not cold:
                entrant.work(before)
                entrant.forget(before)
            for (contender, operation), seconds in entrant.work(keys).items():
                self._seconds[contender, point, operation, state].append(seconds)
            entrant.forget(keys)
            spent[entrant] = time.monotonic() - began

        turn = number % max(1, len(taking_part))
        self._each(work, [*taking_part[turn:], *taking_part[:turn]])
        return spent

    def _verify(self, point: Point) -> None:
        """Move contents that were never moved before, and look at every byte."""
        keys = self._keys(point)
        seed = self._serial

        def verify(entrant: Entrant) -> None:
            entrant.fill(point.pages, seed)
            for contender, wrong in entrant.wrong_pages(keys, seed).items():
                if wrong:
                    self._damaged.append(f"{contender}: {wrong} of {point} came back wrong")
                else:
                    self._verified[contender] += 1
            entrant.forget(keys)

        self._each(verify)
        self._done += 1

    def _keys(self, point: Point) -> list[str]:
        self._serial += 1
        return page_hashes(self._serial, point.pages)

    def _each(
        self, work: Callable[[Entrant], None], entrants: Sequence[Entrant] | None = None
    ) -> None:
        """Let each take its turn, all of them unless some are named; one that fails leaves.

        The others are stopped meanwhile: each idle KVCR takes a part of a core.
        """
        for entrant in list(self._entrants if entrants is None else entrants):
            try:
                entrant.resume()
                work(entrant)
                entrant.pause()
            except WorkerError as error:
                self._leave_out(entrant.family, str(error))
                self._failed += map(entrant.family.contender, entrant.family.places)
                self._entrants.remove(entrant)
                entrant.end()

    def _leave_out(self, family: Family, reason: str) -> None:
        for place in family.places:
            self._not_run[family.contender(place)] = reason
        self.tell(f"{family.name} does not run: {reason}")
