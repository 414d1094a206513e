# SPDX-License-Identifier: Apache-2.0
"""What was seen of the load in waves: one sample for each step, and what kvctl showed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from .miss import Miss
from .savings import Savings

Phase = Literal["free", "deferred", "applied", "lifted"]
"""Without a limit; above it; within it; after it."""


@dataclass(frozen=True)
class PoolSample:
    """One pool after a step.

    Args:
        live_pages: pages that SGLang has handed out.
        booked_pages: those that the load holds, by its own books.
        mapped_bytes: what the managed pool says is mapped.
        expected_bytes: what has to be mapped for the pages in the books.
    """

    live_pages: int
    booked_pages: int
    mapped_bytes: int
    expected_bytes: int


@dataclass(frozen=True)
class Sample:
    """The state after a step; `phase` is that of the pool with the limit.

    Args:
        driver_bytes: what the driver has allocated since the pools were made, and the rows 0 that
            they had.
        committed_bytes: what the kernel has given of it, so what is resident.
    """

    step: int
    phase: Phase
    running: int
    waiting: int
    pools: Mapping[str, PoolSample]
    driver_bytes: int
    committed_bytes: int

    @property
    def mapped_bytes(self) -> int:
        return sum(pool.mapped_bytes for pool in self.pools.values())


@dataclass(frozen=True)
class Command:
    """A limit that was set with kvctl, and the memory in use that kvctl and the pool showed."""

    step: int
    limit_bytes: int
    kvctl_used_bytes: int
    mapped_bytes: int


@dataclass(frozen=True)
class Counts:
    """What became of the load, over all steps; a page counts once for each pool.

    `history` is the compressed pages of which the window had left before they were compared.
    """

    requests: int
    finished: int
    retracted: int
    pages_leased: int
    pages_retired: int
    pages_compared: int
    pages_damaged: int
    history_compared: int
    history_damaged: int
    misses: int
    misses_with_traces: int


@dataclass(frozen=True)
class Pool:
    """Sizes of a managed pool, over all layers; `page_bytes` is one page of SGLang's."""

    pages: int
    page_bytes: int
    layers: int
    vmm_page_bytes: int
    native_bytes: int
    floor_bytes: int


@dataclass(frozen=True)
class Outcome:
    """A run; the last sample is from after the last request. `limited_pool` had the limit."""

    pools: Mapping[str, Pool]
    limited_pool: str
    samples: tuple[Sample, ...]
    limited: Command
    lifted: Command
    counts: Counts
    step_tokens: int
    start_committed_bytes: int
    load_s: float
    savings: Savings
    misses: tuple[Miss, ...]

    def during(self, phase: Phase) -> Sequence[Sample]:
        return [sample for sample in self.samples if sample.phase == phase]

    def limited_bytes(self, samples: Sequence[Sample]) -> list[int]:
        """What was mapped of the pool with the limit."""
        return [sample.pools[self.limited_pool].mapped_bytes for sample in samples]

    @property
    def native_bytes(self) -> int:
        return sum(pool.native_bytes for pool in self.pools.values())

    @property
    def floor_bytes(self) -> int:
        return sum(pool.floor_bytes for pool in self.pools.values())

    @cached_property
    def peak(self) -> Sample:
        return max(self.samples, key=lambda sample: sample.mapped_bytes)

    @property
    def mean_mapped_bytes(self) -> float:
        return sum(sample.mapped_bytes for sample in self.samples) / len(self.samples)

    @property
    def mean_share(self) -> float:
        """Of the native reservation, what was mapped on average over the steps."""
        return self.mean_mapped_bytes / self.native_bytes
