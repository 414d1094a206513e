# SPDX-License-Identifier: Apache-2.0
"""Whether exactly what has to be mapped was mapped, and whether memory came back."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """What was mapped after a step of the load, and what had to be."""

    number: int
    mapped_bytes: int
    expected_bytes: int


@dataclass(frozen=True)
class Exactness:
    """A load from nothing to nothing.

    Args:
        left_bytes: resident memory at the end, beyond that at the start.
        tolerance_bytes: one VMM page of each layer of each pool.
    """

    steps: tuple[Step, ...]
    left_bytes: int
    tolerance_bytes: int

    @property
    def different(self) -> Sequence[Step]:
        return [step for step in self.steps if step.mapped_bytes != step.expected_bytes]

    @property
    def peak_bytes(self) -> int:
        return max((step.mapped_bytes for step in self.steps), default=0)

    @property
    def kept(self) -> bool:
        """Never another byte than expected, of a load that mapped something; memory is back."""
        grew = bool(self.steps) and self.peak_bytes > self.steps[-1].mapped_bytes
        return grew and not self.different and abs(self.left_bytes) <= self.tolerance_bytes
