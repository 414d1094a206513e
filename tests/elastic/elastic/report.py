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
from .savings import Savings
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
            "native_bytes": outcome.native_bytes,
            "peak_mapped_bytes": outcome.peak.mapped_bytes,
            "mean_mapped_bytes": outcome.mean_mapped_bytes,
            "mean_share_of_native": outcome.mean_share,
            "start_committed_bytes": outcome.start_committed_bytes,
            "end_committed_bytes": outcome.samples[-1].committed_bytes,
            "load_s": round(outcome.load_s, 3),
            "claims": [dataclasses.asdict(claim) for claim in self.claims],
            "plan": dataclasses.asdict(self.plan),
            "pools": {name: dataclasses.asdict(pool) for name, pool in outcome.pools.items()},
            "limited_pool": outcome.limited_pool,
            "counts": dataclasses.asdict(outcome.counts),
            "limited": dataclasses.asdict(outcome.limited),
            "lifted": dataclasses.asdict(outcome.lifted),
            "savings": dataclasses.asdict(outcome.savings),
            "pressure": [dataclasses.asdict(miss) for miss in outcome.misses],
            "samples": [dataclasses.asdict(sample) for sample in outcome.samples],
            "environment": dataclasses.asdict(self.environment),
        }

    def write_json(self, path: Path) -> None:
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        path.write_text(f"{text}\n", encoding="utf-8")

    def print(self, console: Console) -> None:
        """The course of the load, the whole model at several loads, and the claims."""
        console.print(_course(self.outcome))
        console.print(_savings(self.outcome.savings))
        console.print(claims_table(self.claims))


def _course(outcome: Outcome) -> Table:
    native, pools = outcome.native_bytes, [*outcome.pools]
    table = Table(title=f"MiB mapped under a load in waves; natively {native >> 20} MiB all along")
    columns = ("step", "requests", "waiting", *pools, "in all", "resident", "of native")
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column(f"limit on {outcome.limited_pool}")
    samples = outcome.samples
    every = max(1, len(samples) // _ROWS)
    for before, sample in zip((None, *samples), samples, strict=False):
        if sample.step % every and before is not None and before.phase == sample.phase:
            continue
        table.add_row(
            str(sample.step),
            str(sample.running),
            str(sample.waiting),
            *(str(sample.pools[name].mapped_bytes >> 20) for name in pools),
            str(sample.mapped_bytes >> 20),
            str((sample.committed_bytes - outcome.start_committed_bytes) >> 20),
            f"{sample.mapped_bytes / native:.0%}",
            "" if sample.phase == "free" else sample.phase,
        )
    return table


def _savings(savings: Savings) -> Table:
    table = Table(
        title=f"MiB of {savings.layers} layers for {savings.tokens:,} tokens, by full pages in use"
    )
    table.add_column("pool")
    for name in ("layers", "B/page", "natively"):
        table.add_column(name, justify="right")
    for level in savings.levels:
        table.add_column(f"{level.course} {level.live_share:.0%}", justify="right")
    for size in savings.sizes:
        taken = (level.mapped_bytes.get(size.pool, size.planned_bytes) for level in savings.levels)
        table.add_row(
            size.pool,
            str(size.layers),
            str(size.page_bytes),
            str(size.planned_bytes >> 20),
            *(str(each >> 20) for each in taken),
        )
    shares = (savings.taken_bytes(level) / savings.native_bytes for level in savings.levels)
    native = str(savings.native_bytes >> 20)
    table.add_row("in all, of natively", "", "", native, *(f"{share:.0%}" for share in shares))
    return table
