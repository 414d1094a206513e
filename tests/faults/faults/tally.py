# SPDX-License-Identifier: Apache-2.0
"""What came of the faults, by kind."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields

from demo.answer import Sources
from rich.console import Console
from rich.table import Table

from kvstrata_host.spec import Json


@dataclass
class Tally:
    """Counts over the faults of one kind, or of all.

    `wrong` answers differ from the one that was computed without any cache; `hung` requests had no
    answer in time; `lost` workers ended, or were ill, although no fault was made on them.
    `recovered` counts the faults after which the target restored from the peer again. The rest are
    tokens of prompts, by where their KV came from.
    """

    faults: int = 0
    requests: int = 0
    wrong: int = 0
    hung: int = 0
    lost: int = 0
    recovered: int = 0
    peer: int = 0
    own_dram: int = 0
    host: int = 0
    device: int = 0
    computed: int = 0

    @property
    def clean(self) -> bool:
        return not (self.wrong or self.hung or self.lost)

    def add(self, sources: Sources) -> None:
        """Count the tokens of one answer."""
        self.peer += sources.peer_dram
        self.own_dram += sources.own_dram
        self.host += sources.host
        self.device += sources.device
        self.computed += sources.computed


def total(tallies: Iterable[Tally]) -> Tally:
    summed = Tally()
    for tally in tallies:
        for field in fields(Tally):
            value = getattr(summed, field.name) + getattr(tally, field.name)
            setattr(summed, field.name, value)
    return summed


@dataclass(frozen=True)
class Report:
    """The whole run. `damage_detected`: whether answers from damaged pages were called wrong."""

    kinds: Mapping[str, Tally]
    damage_detected: bool

    @property
    def total(self) -> Tally:
        return total(self.kinds.values())

    @property
    def problems(self) -> list[str]:
        """Why the run is a failure; empty if it is none."""
        seen = self.total
        found = {
            "wrong outputs": seen.wrong,
            "hung requests": seen.hung,
            "healthy workers lost": seen.lost,
        }
        problems = [f"{name}: {count}" for name, count in found.items() if count]
        if not seen.recovered or not seen.peer:
            problems.append("nothing was restored from the peer")
        if not self.damage_detected:
            problems.append("answers from damaged pages were not called wrong")
        return problems

    def to_json(self) -> dict[str, Json]:
        return {
            "problems": list[Json](self.problems),
            "damage_detected": self.damage_detected,
            "total": asdict(self.total),
            "kinds": {kind: asdict(tally) for kind, tally in self.kinds.items()},
        }

    def print(self, console: Console) -> None:
        table = Table(title="Faults; tokens by where their KV came from")
        for name in ("fault", *(field.name.replace("_", " ") for field in fields(Tally))):
            table.add_column(name, justify="left" if name == "fault" else "right")
        for kind, tally in {**self.kinds, "all": self.total}.items():
            table.add_row(kind, *(str(value) for value in asdict(tally).values()))
        console.print(table)
        verdict = "detected" if self.damage_detected else "NOT DETECTED"
        console.print(f"damage on purpose: {verdict}", markup=False)
        for problem in self.problems:
            console.print(problem, markup=False, style="red")
