# SPDX-License-Identifier: Apache-2.0
"""Each claim holds for a run as it should be, and fails when what it says is not so."""

import dataclasses
from collections.abc import Callable

import pytest
from demo.answer import Answer
from demo.claim import decide
from demo.comparison import Comparison
from demo.outcome import Outcome
from demo.scene import SceneId


def _with_scene(
    outcome: Outcome,
    scene: SceneId,
    *,
    answer: Answer | None = None,
    comparison: Comparison | None = None,
) -> Outcome:
    def changed() -> dict[str, object]:
        given = {"answer": answer, "comparison": comparison}
        return {name: value for name, value in given.items() if value is not None}

    scenes = tuple(
        dataclasses.replace(each, **changed()) if each.id == scene else each  # type: ignore[arg-type]
        for each in outcome.scenes
    )
    return dataclasses.replace(outcome, scenes=scenes)


def _counted(outcome: Outcome, scene: SceneId, **counts: float) -> Outcome:
    """The outcome in which SGLang counted or timed a request otherwise."""
    answer = outcome[scene].answer
    generation = dataclasses.replace(answer.generation, **counts)  # type: ignore[arg-type]
    return _with_scene(outcome, scene, answer=dataclasses.replace(answer, generation=generation))


def _compared(outcome: Outcome, scene: SceneId, *, ids_equal: bool, difference: float) -> Outcome:
    tolerance = outcome[scene].comparison.tolerance
    return _with_scene(outcome, scene, comparison=Comparison(ids_equal, difference, tolerance))


def _two_ranks(outcome: Outcome, scene: SceneId, *, second_pages: int) -> Outcome:
    """The outcome in which a second rank restored this many pages from the peer."""
    answer = outcome[scene].answer
    (first,) = answer.restores
    second = dataclasses.replace(first, rank=1, restored=second_pages, from_peer=second_pages)
    ranks = dataclasses.replace(answer, restores=(first, second), ranks=2)
    return _with_scene(outcome, scene, answer=ranks)


def _all_computed(outcome: Outcome, scene: SceneId) -> Outcome:
    computed = outcome["recomputed"].answer
    return _with_scene(outcome, scene, answer=computed)


def test_every_claim_holds_for_a_run_as_it_should_be(outcome: Outcome) -> None:
    claims = decide(outcome)
    assert [claim.id for claim in claims if not claim.holds] == []
    assert len({claim.id for claim in claims}) == len(claims)
    assert all(claim.evidence for claim in claims)


def test_the_claims_hold_for_two_ranks_that_restored_alike(outcome: Outcome) -> None:
    alike = _two_ranks(outcome, "from-peer", second_pages=127)
    assert [claim.id for claim in decide(alike) if not claim.holds] == []


FAILURES: list[tuple[str, str, Callable[[Outcome], Outcome]]] = [
    (
        "sglang-counts-fewer",
        "counts_agree",
        lambda run: _counted(run, "from-peer", cached_tokens=2016, cached_storage_tokens=2016),
    ),
    (
        "sglang-counts-nothing",
        "counts_agree",
        lambda run: _counted(run, "damaged", cached_tokens=0, cached_storage_tokens=0),
    ),
    (
        "a-rank-restored-less",
        "counts_agree",
        lambda run: _two_ranks(run, "from-peer", second_pages=126),
    ),
    (
        "a-rank-restored-nothing",
        "peer_restored",
        lambda run: _two_ranks(run, "from-peer", second_pages=0),
    ),
    (
        "cached-tokens-from-nowhere",
        "counts_agree",
        lambda run: _counted(run, "recomputed", cached_tokens=16),
    ),
    (
        "other-ids",
        "all_outputs_equal",
        lambda run: _compared(run, "from-own-dram", ids_equal=False, difference=0.0),
    ),
    (
        "other-logprobs",
        "all_outputs_equal",
        lambda run: _compared(run, "dead-peer", ids_equal=True, difference=0.01),
    ),
    (
        "other-answer-to-the-first-prompt",
        "all_outputs_equal",
        lambda run: _compared(run, "first-contact", ids_equal=True, difference=0.01),
    ),
    ("nothing-from-the-peer", "peer_restored", lambda run: _all_computed(run, "from-peer")),
    (
        "own-dram-instead-of-the-peer",
        "peer_restored",
        lambda run: _with_scene(run, "from-peer", answer=run["from-own-dram"].answer),
    ),
    ("nothing-from-own-dram", "local_restored", lambda run: _all_computed(run, "from-own-dram")),
    (
        "the-peer-instead-of-own-dram",
        "local_restored",
        lambda run: _with_scene(run, "from-own-dram", answer=run["from-peer"].answer),
    ),
    (
        "comparison-was-restored-too",
        "recomputed",
        lambda run: _with_scene(run, "recomputed", answer=run["from-peer"].answer),
    ),
    (
        "damage-without-a-trace",
        "damage_detected",
        lambda run: _compared(run, "damaged", ids_equal=True, difference=0.0),
    ),
    (
        "damage-hardly-beyond-the-tolerance",
        "damage_detected",
        lambda run: _compared(run, "damaged", ids_equal=False, difference=0.002),
    ),
    ("nothing-to-damage", "damage_detected", lambda run: _all_computed(run, "damaged")),
    (
        "ill-without-its-peer",
        "dead_peer_served",
        lambda run: dataclasses.replace(run, survivor_healthy=False),
    ),
    (
        "peer-was-not-dead",
        "dead_peer_served",
        lambda run: dataclasses.replace(run, dead_peer_noticed=False),
    ),
    (
        "dead-peer-changed-the-answer",
        "dead_peer_served",
        lambda run: _compared(run, "dead-peer", ids_equal=False, difference=0.0),
    ),
    (
        "dead-peer-was-not-needed",
        "dead_peer_served",
        lambda run: _with_scene(run, "dead-peer", answer=run["from-own-dram"].answer),
    ),
    (
        "peer-no-faster",
        "peer_restore_faster",
        lambda run: _counted(run, "from-peer", time_to_first_token_s=3.0),
    ),
    (
        "own-dram-no-faster",
        "local_restore_faster",
        lambda run: _counted(run, "from-own-dram", time_to_first_token_s=3.5),
    ),
]


@pytest.mark.parametrize(
    ("claim", "break_it"),
    [(claim, break_it) for _, claim, break_it in FAILURES],
    ids=[name for name, _, _ in FAILURES],
)
def test_a_claim_fails_when_it_is_not_so(
    outcome: Outcome, claim: str, break_it: Callable[[Outcome], Outcome]
) -> None:
    failed = {each.id for each in decide(break_it(outcome)) if not each.holds}
    assert claim in failed


def test_every_claim_has_a_run_in_which_it_fails(outcome: Outcome) -> None:
    assert {claim for _, claim, _ in FAILURES} == {claim.id for claim in decide(outcome)}
