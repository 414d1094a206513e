# SPDX-License-Identifier: Apache-2.0
"""Each claim holds for a run as it should be, and fails when what it says is not so."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from elastic.claim import decide
from elastic.outcome import Outcome
from good_run import BUNDLE, good_run


@pytest.fixture
def outcome() -> Outcome:
    return good_run()


def _at(outcome: Outcome, step: int, **changes: Any) -> Outcome:
    """The run in which one step looked otherwise."""
    samples = list(outcome.samples)
    samples[step] = dataclasses.replace(samples[step], **changes)
    return dataclasses.replace(outcome, samples=tuple(samples))


def _pool_at(outcome: Outcome, step: int, name: str = "swa", **changes: Any) -> Outcome:
    """The run in which one pool looked otherwise at one step."""
    pools = dict(outcome.samples[step].pools)
    pools[name] = dataclasses.replace(pools[name], **changes)
    return _at(outcome, step, pools=pools)


def _limited_everywhere(outcome: Outcome, mapped_bytes: int) -> Outcome:
    for step in range(len(outcome.samples)):
        outcome = _pool_at(outcome, step, mapped_bytes=mapped_bytes)
    return outcome


def _saved(outcome: Outcome, **changes: Any) -> Outcome:
    return dataclasses.replace(outcome, savings=dataclasses.replace(outcome.savings, **changes))


def _level(outcome: Outcome, **changes: Any) -> Outcome:
    """The run in which the whole model looked otherwise at the first load."""
    first, *others = outcome.savings.levels
    return _saved(outcome, levels=(dataclasses.replace(first, **changes), *others))


def _missed(outcome: Outcome, **changes: Any) -> Outcome:
    """The run in which the second miss went otherwise."""
    first, second = outcome.misses
    return dataclasses.replace(outcome, misses=(first, dataclasses.replace(second, **changes)))


def _everywhere(outcome: Outcome, **changes: Any) -> Outcome:
    for step in range(len(outcome.samples)):
        outcome = _at(outcome, step, **changes)
    return outcome


def _counted(outcome: Outcome, **changes: int) -> Outcome:
    counts = dataclasses.replace(outcome.counts, **changes)
    return dataclasses.replace(outcome, counts=counts)


def test_every_claim_holds_for_a_run_as_it_should_be(outcome: Outcome) -> None:
    claims = decide(outcome)
    assert [claim.id for claim in claims if not claim.holds] == []
    assert len({claim.id for claim in claims}) == len(claims)
    assert all(claim.evidence for claim in claims)


FAILURES: list[tuple[str, str, Callable[[Outcome], Outcome]]] = [
    (
        "one-byte-more-than-expected",
        "mapped_exactly",
        lambda run: _pool_at(run, 2, "indexer", expected_bytes=BUNDLE - 1),
    ),
    ("the-driver-has-less", "mapped_exactly", lambda run: _at(run, 2, driver_bytes=0)),
    ("sglang-has-other-pages", "mapped_exactly", lambda run: _pool_at(run, 9, "c4", live_pages=1)),
    ("nothing-was-leased", "mapped_exactly", lambda run: _counted(run, pages_leased=0)),
    (
        "memory-stays-after-a-wave",
        "follows_load",
        lambda run: _at(run, 4, pools=run.samples[3].pools),
    ),
    (
        "everything-is-mapped",
        "follows_load",
        lambda run: _pool_at(run, 14, "c4", mapped_bytes=run.native_bytes),
    ),
    (
        "unmapped-memory-stays-resident",
        "committed_within",
        lambda run: _at(run, 4, committed_bytes=run.samples[3].committed_bytes),
    ),
    ("nothing-is-resident", "committed_within", lambda run: _everywhere(run, committed_bytes=0)),
    (
        "memory-stays-mapped",
        "memory_returned",
        lambda run: _pool_at(run, -1, "indexer", mapped_bytes=2 * BUNDLE),
    ),
    (
        "memory-stays-resident",
        "memory_returned",
        lambda run: _at(run, -1, committed_bytes=run.floor_bytes + 1),
    ),
    ("a-page-was-damaged", "contents_kept", lambda run: _counted(run, pages_damaged=1)),
    ("a-page-was-not-compared", "contents_kept", lambda run: _counted(run, pages_compared=499)),
    (
        "a-miss-left-a-trace",
        "misses_without_traces",
        lambda run: _counted(run, misses_with_traces=1),
    ),
    ("nothing-missed", "misses_without_traces", lambda run: _counted(run, misses=0)),
    (
        "more-is-mapped-while-deferred",
        "limit_deferred",
        lambda run: _pool_at(run, 8, mapped_bytes=12 * BUNDLE),
    ),
    ("the-limit-was-met-at-once", "limit_deferred", lambda run: _everywhere(run, phase="applied")),
    (
        "more-than-the-limit",
        "limit_applied",
        lambda run: _pool_at(run, 11, mapped_bytes=run.limited.limit_bytes + 1),
    ),
    ("never-applied", "limit_applied", lambda run: _everywhere(run, phase="deferred")),
    ("deferred-again", "limit_applied", lambda run: _at(run, 11, phase="deferred")),
    ("nobody-waits", "limit_applied", lambda run: _everywhere(run, waiting=0)),
    (
        "no-growth-after-the-limit",
        "limit_lifted",
        lambda run: _limited_everywhere(run, run.limited.limit_bytes),
    ),
    (
        "kvctl-shows-something-else",
        "kvctl_agrees",
        lambda run: dataclasses.replace(
            run, lifted=dataclasses.replace(run.lifted, kvctl_used_bytes=0)
        ),
    ),
    ("a-request-was-lost", "all_served", lambda run: _counted(run, finished=39)),
    ("there-were-no-requests", "all_served", lambda run: _counted(run, requests=0, finished=0)),
    ("history-was-damaged", "history_kept", lambda run: _counted(run, history_damaged=1)),
    ("no-history-outlived", "history_kept", lambda run: _counted(run, history_compared=0)),
    (
        "the-plan-is-a-byte-off",
        "sizes_as_planned",
        lambda run: _saved(
            run,
            sizes=(
                dataclasses.replace(run.savings.sizes[0], planned_bytes=1),
                *run.savings.sizes[1:],
            ),
        ),
    ),
    ("nothing-was-made", "sizes_as_planned", lambda run: _saved(run, sizes=())),
    ("a-load-maps-too-much", "loads_mapped_exactly", lambda run: _level(run, expected_bytes={})),
    ("the-driver-disagrees", "loads_mapped_exactly", lambda run: _level(run, driver_bytes=0)),
    ("a-context-was-damaged", "loads_mapped_exactly", lambda run: _saved(run, pages_damaged=1)),
    ("there-were-no-loads", "loads_mapped_exactly", lambda run: _saved(run, levels=())),
    (
        "as-much-as-natively",
        "less_than_natively",
        lambda run: _level(run, mapped_bytes={"swa": run.savings.native_bytes}),
    ),
    (
        "a-small-load-takes-half",
        "less_than_natively",
        lambda run: _level(run, mapped_bytes={"swa": run.savings.native_bytes // 2}),
    ),
    (
        "more-is-resident-than-mapped",
        "less_than_natively",
        lambda run: _level(run, committed_bytes=run.savings.levels[0].managed_bytes + 1),
    ),
    ("it-was-no-miss", "miss_rolled_back", lambda run: _missed(run, missed=False)),
    ("a-miss-changed-a-list", "miss_rolled_back", lambda run: _missed(run, is_untouched=False)),
    ("nothing-was-mapped-before", "miss_rolled_back", lambda run: _missed(run, allocations=0)),
    ("it-misses-for-good", "same_request_succeeds", lambda run: _missed(run, succeeded=False)),
    ("nothing-was-freed", "same_request_succeeds", lambda run: _missed(run, pages_freed=0)),
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
