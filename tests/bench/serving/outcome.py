# SPDX-License-Identifier: Apache-2.0
"""What was seen of each case, in tables."""

import csv
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .case import Case
from .workload import Burst

HEADS = ("case", "first token p50 ms", "first token max ms", "tokens/s", "bursts")


@dataclass(frozen=True)
class Outcome:
    """All bursts of one case, or why there are none."""

    case: Case
    bursts: tuple[Burst, ...]
    failure: str = ""

    @property
    def first_token_seconds(self) -> tuple[float, ...]:
        """Of the requests that are the first of their group to need the prefix."""
        return tuple(
            answer.time_to_first_token_s
            for burst in self.bursts
            for answer in burst.answers
            if answer.cached_device_tokens == 0
        )

    @property
    def p50_seconds(self) -> float:
        return statistics.median(self.first_token_seconds)

    @property
    def tokens_per_second(self) -> float:
        """The median over the bursts."""
        return statistics.median(burst.tokens_per_second for burst in self.bursts)

    def row(self) -> tuple[str, ...]:
        """The cells under HEADS."""
        if not self.bursts:
            return (self.case.name, "", "", "", self.failure or "no time was left")
        return (
            self.case.name,
            f"{self.p50_seconds * 1000:.0f}",
            f"{max(self.first_token_seconds) * 1000:.0f}",
            f"{self.tokens_per_second:.0f}",
            str(len(self.bursts)),
        )


def write_csv(path: Path, outcomes: Sequence[Outcome]) -> None:
    """One row per case."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADS)
        writer.writerows(outcome.row() for outcome in outcomes)


def write_json(path: Path, outcomes: Sequence[Outcome], facts: Mapping[str, str]) -> None:
    """Every request's times, in seconds."""
    document = {
        "facts": dict(facts),
        "cases": [
            {
                "name": outcome.case.name,
                "tuning": dict(outcome.case.tuning),
                "failure": outcome.failure,
                "bursts": [
                    {
                        "seconds": burst.seconds,
                        "tokens_per_second": burst.tokens_per_second,
                        "restored_tokens": burst.restored_tokens,
                        "first_token_seconds": [
                            answer.time_to_first_token_s for answer in burst.answers
                        ],
                    }
                    for burst in outcome.bursts
                ],
            }
            for outcome in outcomes
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def markdown(outcomes: Sequence[Outcome], facts: Mapping[str, str]) -> str:
    """The table as a part of a page; made by the benchmark, not by hand."""
    described = ", ".join(f"{name} {value}" for name, value in facts.items())
    return "\n".join(
        [
            "<!-- Written by `nox -s bench-serving -- --docs docs`; not edited by hand. -->",
            "",
            f"Measured on: {described}.",
            "",
            f"| {' | '.join(HEADS)} |",
            f"|{' --- |' * len(HEADS)}",
            *(f"| {' | '.join(outcome.row())} |" for outcome in outcomes),
            "",
        ]
    )
