# SPDX-License-Identifier: Apache-2.0
"""What is handed over: report.json, for programs, and tables, for the terminal."""

import dataclasses
import json
from pathlib import Path

from demo.claim import Claim
from demo.environment import Environment
from demo.report import claims_table
from rich.console import Console
from rich.table import Table

from kvstrata_host.spec import Json

from .claim import decide
from .outcome import Outcome
from .story import Plan

_ROWS = 20


@dataclasses.dataclass(frozen=True)
class Report:
    """A run, decided."""

    plan: Plan
    outcome: Outcome
    environment: Environment
    claims: tuple[Claim, ...]

    @classmethod
    def of(cls, plan: Plan, outcome: Outcome, environment: Environment) -> "Report":
        return cls(plan, outcome, environment, decide(outcome))

    @property
    def failed(self) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.claims if not claim.holds)

    def to_json(self) -> dict[str, Json]:
        """The document of report.json."""
        outcome = self.outcome
        return {
            "all_claims_hold": not self.failed,
            "native_bytes": outcome.pool.native_bytes,
            "peak_mapped_bytes": outcome.peak.mapped_bytes,
            "mean_mapped_bytes": outcome.mean_mapped_bytes,
            "mean_share_of_native": outcome.mean_share,
            "start_committed_bytes": outcome.start_committed_bytes,
            "end_committed_bytes": outcome.samples[-1].committed_bytes,
            "load_s": round(outcome.load_s, 3),
            "claims": [dataclasses.asdict(claim) for claim in self.claims],
            "plan": dataclasses.asdict(self.plan),
            "pool": dataclasses.asdict(outcome.pool),
            "counts": dataclasses.asdict(outcome.counts),
            "limited": dataclasses.asdict(outcome.limited),
            "lifted": dataclasses.asdict(outcome.lifted),
            "samples": [dataclasses.asdict(sample) for sample in outcome.samples],
            "environment": dataclasses.asdict(self.environment),
        }

    def write_json(self, path: Path) -> None:
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        path.write_text(f"{text}\n", encoding="utf-8")

    def print(self, console: Console) -> None:
        """The course of the load and the claims."""
        console.print(_course(self.outcome))
        console.print(claims_table(self.claims))


def _course(outcome: Outcome) -> Table:
    native = outcome.pool.native_bytes
    table = Table(
        title=f"Memory of the sliding-window pool; natively {native / (1 << 20):.0f} MiB all along"
    )
    columns = ("step", "requests", "waiting", "live pages", "mapped MiB", "resident MiB", "native")
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("limit")
    samples = outcome.samples
    every = max(1, len(samples) // _ROWS)
    for before, sample in zip((None, *samples), samples, strict=False):
        if sample.step % every and before is not None and before.phase == sample.phase:
            continue
        table.add_row(
            str(sample.step),
            str(sample.running),
            str(sample.waiting),
            str(sample.live_pages),
            f"{sample.mapped_bytes / (1 << 20):.0f}",
            f"{(sample.committed_bytes - outcome.start_committed_bytes) / (1 << 20):.0f}",
            f"{sample.mapped_bytes / native:.0%}",
            "" if sample.phase == "free" else sample.phase,
        )
    return table
