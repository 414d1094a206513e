# SPDX-License-Identifier: Apache-2.0
"""Equality of answers: ids exactly, logprobs within the tolerance."""

import math

import pytest
from demo.comparison import Comparison, compare


def _compare(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> Comparison:
    return compare(
        ids, logprobs, reference_ids=(1, 2), reference_logprobs=(-1.0, -2.0), tolerance=0.01
    )


def test_the_same_ids_and_close_logprobs_are_equal() -> None:
    comparison = _compare((1, 2), (-1.0, -2.005))
    assert comparison.equal
    assert comparison.max_logprob_difference == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("ids", "logprobs"),
    [
        pytest.param((1, 3), (-1.0, -2.0), id="another-id"),
        pytest.param((1,), (-1.0,), id="shorter"),
        pytest.param((1, 2), (-1.0, -2.02), id="logprob-beyond-the-tolerance"),
        pytest.param((1, 2), (-1.0,), id="missing-logprob"),
        pytest.param((1, 2), (-1.0, math.nan), id="logprob-that-is-no-number"),
        pytest.param((1, 2), (-1.0, -math.inf), id="impossible-token"),
        pytest.param((), (), id="empty"),
    ],
)
def test_any_other_answer_is_different(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> None:
    assert not _compare(ids, logprobs).equal


def test_two_empty_answers_are_not_equal() -> None:
    assert not compare((), (), reference_ids=(), reference_logprobs=()).equal
