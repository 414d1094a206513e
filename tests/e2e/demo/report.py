# SPDX-License-Identifier: Apache-2.0
"""What is handed over: report.json, for programs, and a table, for the terminal."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvstrata_host.spec import Json

from .claim import Claim, decide
from .environment import Environment
from .hint import has_native_field
from .outcome import Outcome
from .scene import Scene
from .story import Plan


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
        """The document of report.json; a number that is not finite is null."""
        outcome = self.outcome
        holds = {claim.id: claim.holds for claim in self.claims}
        damaged = outcome["damaged"].comparison
        return {
            "all_claims_hold": not self.failed,
            "all_outputs_equal": holds["all_outputs_equal"],
            "peer_restored_tokens": outcome["from-peer"].answer.sources.peer_dram,
            "local_restored_tokens": outcome["from-own-dram"].answer.sources.own_dram,
            "dead_peer_served": holds["dead_peer_served"],
            "damage_detected": holds["damage_detected"],
            "peer_restore_speedup": _finite(outcome.peer_restore_speedup),
            "local_restore_speedup": _finite(outcome.local_restore_speedup),
            "max_logprob_difference": _finite(outcome.max_logprob_difference),
            "damage_logprob_difference": _finite(damaged.max_logprob_difference),
            "logprob_tolerance": damaged.tolerance,
            "ranks": self.plan.ranks,
            "tuning": dict(self.plan.tuning),
            "hint_carrier": "kv_hints" if has_native_field() else "custom_params",
            "prompt_tokens": self.plan.prompt_tokens,
            "new_tokens": self.plan.new_tokens,
            "seed": self.plan.seed,
            "servers_start_s": _finite(outcome.start_s),
            "scenes_s": _finite(outcome.play_s),
            "claims": [
                {
                    "id": claim.id,
                    "sentence": claim.sentence,
                    "holds": claim.holds,
                    "evidence": claim.evidence,
                }
                for claim in self.claims
            ],
            "scenes": [_scene(scene) for scene in outcome.scenes],
            "environment": {
                "versions": dict(self.environment.versions),
                "python": self.environment.python,
                "system": self.environment.system,
                "cpu_count": self.environment.cpu_count,
                "load": _finite(self.environment.load),
            },
        }

    def write_json(self, path: Path) -> None:
        text = json.dumps(self.to_json(), indent=2, allow_nan=False)
        path.write_text(f"{text}\n", encoding="utf-8")

    def print(self, console: Console) -> None:
        """The scenes and the claims as tables."""
        console.print(_scenes_table(self.outcome.scenes))
        console.print(claims_table(self.claims))


def _scene(scene: Scene) -> dict[str, Json]:
    answer, comparison = scene.answer, scene.comparison
    sources, timing, counted = answer.sources, answer.timing, answer.generation
    return {
        "id": scene.id,
        "replica": scene.replica,
        "title": scene.title,
        "what": scene.what,
        "tokens": {
            "prompt": counted.prompt_tokens,
            "computed": sources.computed,
            "device": sources.device,
            "host": sources.host,
            "own_dram": sources.own_dram,
            "peer_dram": sources.peer_dram,
        },
        "sglang_cached_tokens": counted.cached_tokens,
        "sglang_cached_storage_tokens": counted.cached_storage_tokens,
        "kvcr_logged_restored_tokens": answer.logged_tokens,
        "counts_agree": answer.counts_agree,
        "seconds": {
            "restore": round(timing.restore_s, 6),
            "prefill": round(timing.prefill_s, 6),
            "first_token": round(timing.first_token_s, 6),
            "decode": round(timing.decode_s, 6),
        },
        "output_ids": list(counted.output_ids),
        "output_logprobs": [_finite(each) for each in counted.output_logprobs],
        "equal": comparison.equal,
        "ids_equal": comparison.ids_equal,
        "max_logprob_difference": _finite(comparison.max_logprob_difference),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _scenes_table(scenes: tuple[Scene, ...]) -> Table:
    table = Table(title="Where each request's tokens came from, and how long each part took")
    table.add_column("scene")
    table.add_column("on")
    for name in ("computed", "device", "host", "own DRAM", "peer"):
        table.add_column(name, justify="right")
    for name in ("restore ms", "first token ms", "decode ms"):
        table.add_column(name, justify="right")
    table.add_column("answer")
    for scene in scenes:
        sources, timing = scene.answer.sources, scene.answer.timing
        counts = dataclasses.astuple(sources)
        times = (timing.restore_s, timing.first_token_s, timing.decode_s)
        table.add_row(
            scene.title,
            scene.replica,
            *(str(count) if count else "·" for count in counts),
            *(f"{time * 1000:.0f}" if time else "·" for time in times),
            _verdict(scene),
        )
    return table


def _verdict(scene: Scene) -> Text:
    if scene.id in {"computed", "first-contact"}:
        return Text("reference" if scene.id == "computed" else "equal to A's")
    equal, wanted = scene.comparison.equal, scene.id != "damaged"
    return Text("equal" if equal else "different", style="green" if equal == wanted else "red")


def claims_table(claims: Sequence[Claim]) -> Table:
    """For the terminal."""
    table = Table(title="Claims", show_lines=True)
    table.add_column("holds")
    table.add_column("claim")
    table.add_column("evidence")
    for claim in claims:
        mark = Text("yes", style="green") if claim.holds else Text("NO", style="bold red")
        table.add_row(mark, Text(claim.sentence), Text(claim.evidence))
    return table
