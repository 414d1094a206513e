# SPDX-License-Identifier: Apache-2.0
"""What the demo claims, each decided by what was seen."""

from collections.abc import Sequence
from dataclasses import dataclass

from .outcome import Outcome
from .scene import Scene, SceneId

_UNDAMAGED: tuple[SceneId, ...] = (
    "first-contact",
    "from-peer",
    "recomputed",
    "from-own-dram",
    "dead-peer",
)
_DAMAGE_MARGIN = 100
"""How many tolerances the damage has to show, or the tolerance could have hidden it."""


@dataclass(frozen=True)
class Claim:
    """A sentence, whether it holds, and the numbers by which this was decided."""

    id: str
    sentence: str
    holds: bool
    evidence: str


def decide(outcome: Outcome) -> tuple[Claim, ...]:
    """Every claim of the demo, held or not."""
    return (
        _counts_agree(outcome.scenes),
        _all_outputs_equal(outcome),
        _peer_restored(outcome["from-peer"]),
        _recomputed(outcome),
        _local_restored(outcome["from-own-dram"]),
        _damage_detected(outcome["damaged"]),
        _dead_peer_served(outcome),
        _faster(outcome, "peer_restore_faster", "from-peer", outcome.peer_restore_speedup),
        _faster(outcome, "local_restore_faster", "from-own-dram", outcome.local_restore_speedup),
    )


def _counts_agree(scenes: Sequence[Scene]) -> Claim:
    wrong = [scene for scene in scenes if not scene.answer.counts_agree]
    seen = "; ".join(
        f"{scene.title}: SGLang counted {scene.answer.generation.cached_storage_tokens}, "
        f"KVCR logged {scene.answer.logged_tokens}"
        for scene in wrong or scenes
        if wrong or scene.answer.logged_tokens
    )
    return Claim(
        "counts_agree",
        "SGLang's count of tokens from storage is what KVCR says it restored, in every request.",
        not wrong,
        seen,
    )


def _all_outputs_equal(outcome: Outcome) -> Claim:
    scenes = [outcome[each] for each in _UNDAMAGED]
    different = [f"{each.title} of {each.replica}" for each in scenes if not each.comparison.equal]
    distance = (
        f"largest logprob difference {outcome.max_logprob_difference:.3g}, "
        f"tolerance {scenes[0].comparison.tolerance:g}"
    )
    return Claim(
        "all_outputs_equal",
        "Wherever the prompt's KV came from, the answer has the same ids and logprobs.",
        not different,
        f"different: {', '.join(different)}; {distance}" if different else distance,
    )


def _peer_restored(scene: Scene) -> Claim:
    sources = scene.answer.sources
    return Claim(
        "peer_restored",
        "With a hint, B takes the prompt from A's DRAM instead of computing it.",
        sources.peer_dram > sources.total // 2 and not sources.own_dram,
        f"{sources.peer_dram} of {sources.total} tokens from the peer, {sources.own_dram} from own "
        f"DRAM, {sources.computed} computed",
    )


def _recomputed(outcome: Outcome) -> Claim:
    first, again = outcome["computed"].answer.sources, outcome["recomputed"].answer.sources
    return Claim(
        "recomputed",
        "What restoring is compared with really is computing: nothing came from any cache.",
        first.computed == first.total and again.computed == again.total,
        f"{first.computed} of {first.total} tokens computed by A, "
        f"{again.computed} of {again.total} by B",
    )


def _local_restored(scene: Scene) -> Claim:
    sources = scene.answer.sources
    return Claim(
        "local_restored",
        "With its device and host pools flushed, B takes the prompt from its own KVCR DRAM.",
        sources.own_dram > sources.total // 2 and not sources.peer_dram,
        f"{sources.own_dram} of {sources.total} tokens from own DRAM, {sources.peer_dram} from a "
        f"peer, {sources.computed} computed",
    )


def _damage_detected(scene: Scene) -> Claim:
    comparison, restored = scene.comparison, scene.answer.sources.peer_dram
    visible = comparison.max_logprob_difference >= _DAMAGE_MARGIN * comparison.tolerance
    return Claim(
        "damage_detected",
        "When restored bytes are damaged on purpose, the same comparison says that they are.",
        restored > 0 and not comparison.equal and visible,
        f"{restored} tokens restored and damaged; ids "
        f"{'equal' if comparison.ids_equal else 'differ'}, largest logprob difference "
        f"{comparison.max_logprob_difference:.3g}, which has to be {_DAMAGE_MARGIN} times the "
        f"tolerance of {comparison.tolerance:g} or more",
    )


def _dead_peer_served(outcome: Outcome) -> Claim:
    scene = outcome["dead-peer"]
    sources = scene.answer.sources
    local = sources.computed == sources.total
    equal = scene.comparison.equal
    noticed, healthy = outcome.dead_peer_noticed, outcome.survivor_healthy
    return Claim(
        "dead_peer_served",
        "A hint to a dead peer costs B nothing but the computation: it answers and stays healthy.",
        local and equal and noticed and healthy,
        f"{sources.computed} of {sources.total} tokens computed by B, answer "
        f"{'equal' if equal else 'different'}, dead peer {'' if noticed else 'not '}noticed, "
        f"B {'' if healthy else 'not '}healthy afterwards",
    )


def _faster(outcome: Outcome, claim: str, scene: SceneId, speedup: float) -> Claim:
    restored = outcome[scene].answer.timing.first_token_s
    computed = outcome["recomputed"].answer.timing.first_token_s
    title = outcome[scene].title
    return Claim(
        claim,
        f"“{title}” has its first token before “{outcome['recomputed'].title}”: same prompt and "
        "server.",
        speedup > 1,
        f"{restored * 1000:.0f} ms against {computed * 1000:.0f} ms, {speedup:.1f} times as fast",
    )
