# SPDX-License-Identifier: Apache-2.0
"""Equality of two answers: the same token ids, and logprobs within a tolerance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LOGPROB_TOLERANCE = 1e-3
"""Far above what another order of float32 additions changes, far below what wrong KV changes."""


@dataclass(frozen=True)
class Comparison:
    """How far an answer is from the reference."""

    ids_equal: bool
    max_logprob_difference: float
    tolerance: float

    @property
    def equal(self) -> bool:
        return self.ids_equal and self.max_logprob_difference <= self.tolerance


def compare(
    ids: Sequence[int],
    logprobs: Sequence[float],
    *,
    reference_ids: Sequence[int],
    reference_logprobs: Sequence[float],
    tolerance: float = LOGPROB_TOLERANCE,
) -> Comparison:
    """Compare an answer with the reference.

    Missing and unordered (NaN) logprobs differ infinitely, and no answer equals an empty one.
    """
    return Comparison(
        ids_equal=bool(reference_ids) and tuple(ids) == tuple(reference_ids),
        max_logprob_difference=_largest_difference(logprobs, reference_logprobs),
        tolerance=tolerance,
    )


def _largest_difference(left: Sequence[float], right: Sequence[float]) -> float:
    if not left or len(left) != len(right):
        return math.inf
    differences = [abs(a - b) for a, b in zip(left, right, strict=True)]
    return math.inf if any(map(math.isnan, differences)) else max(differences)
