# SPDX-License-Identifier: Apache-2.0
"""Each claim holds for a run as it should be, and fails when what it says is not so."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from elastic.claim import decide
from elastic.outcome import Outcome
from good_run import good_run


@pytest.fixture
def outcome() -> Outcome:
    return good_run()


def _at(outcome: Outcome, step: int, **changes: Any) -> Outcome:
    """The run in which one step looked otherwise."""
    samples = list(outcome.samples)
    samples[step] = dataclasses.replace(samples[step], **changes)
    return dataclasses.replace(outcome, samples=tuple(samples))


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
        lambda run: _at(run, 2, expected_bytes=run.samples[2].mapped_bytes - 1),
    ),
    ("the-driver-has-less", "mapped_exactly", lambda run: _at(run, 2, driver_bytes=0)),
    ("sglang-has-other-pages", "mapped_exactly", lambda run: _at(run, 9, live_pages=1)),
    ("nothing-was-leased", "mapped_exactly", lambda run: _counted(run, pages_leased=0)),
    (
        "memory-stays-after-a-wave",
        "follows_load",
        lambda run: _at(run, 4, mapped_bytes=run.samples[3].mapped_bytes),
    ),
    (
        "everything-is-mapped",
        "follows_load",
        lambda run: _at(run, 14, mapped_bytes=run.pool.native_bytes),
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
        lambda run: _at(run, -1, mapped_bytes=2 * run.pool.floor_bytes),
    ),
    (
        "memory-stays-resident",
        "memory_returned",
        lambda run: _at(run, -1, committed_bytes=run.pool.floor_bytes + 1),
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
        lambda run: _at(run, 8, mapped_bytes=12 * run.pool.floor_bytes),
    ),
    ("the-limit-was-met-at-once", "limit_deferred", lambda run: _everywhere(run, phase="applied")),
    (
        "more-than-the-limit",
        "limit_applied",
        lambda run: _at(run, 11, mapped_bytes=run.limited.limit_bytes + 1),
    ),
    ("never-applied", "limit_applied", lambda run: _everywhere(run, phase="deferred")),
    ("deferred-again", "limit_applied", lambda run: _at(run, 11, phase="deferred")),
    ("nobody-waits", "limit_applied", lambda run: _everywhere(run, waiting=0)),
    (
        "no-growth-after-the-limit",
        "limit_lifted",
        lambda run: _everywhere(run, mapped_bytes=run.limited.limit_bytes),
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
