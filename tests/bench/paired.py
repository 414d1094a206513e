# SPDX-License-Identifier: Apache-2.0
"""Two ways of doing the same work, timed in turn, so that a busy machine slows both alike."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How long the work takes through the product, over how long it takes without.

    Args:
        name: what was done.
        product_seconds, peer_seconds: each round's time; rounds are paired by position.
        peer: what it is compared with.
        limit: the ratio that is not to be exceeded; None where none is wanted.
    """

    name: str
    product_seconds: tuple[float, ...]
    peer_seconds: tuple[float, ...]
    peer: str
    limit: float | None

    @property
    def product_median_seconds(self) -> float:
        return statistics.median(self.product_seconds)

    @property
    def peer_median_seconds(self) -> float:
        return statistics.median(self.peer_seconds)

    @property
    def value(self) -> float:
        """The ratio of the medians."""
        return self.product_median_seconds / self.peer_median_seconds

    @property
    def spread(self) -> tuple[float, float]:
        """The middle half of the rounds' own ratios."""
        ratios = [a / b for a, b in zip(self.product_seconds, self.peer_seconds, strict=True)]
        quarters = statistics.quantiles(ratios, n=4)
        return quarters[0], quarters[2]

    @property
    def kept(self) -> bool:
        return self.limit is None or self.value <= self.limit


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turn(
    rounds: int, product: Callable[[int], float], peer: Callable[[int], float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of each round of both; which comes first changes from round to round.

    `product` and `peer` get the number of the round and return the seconds that count.
    """
    ours, theirs = [], []
    for number in range(rounds):
        if number % 2:
            ours.append(product(number))
            theirs.append(peer(number))
        else:
            theirs.append(peer(number))
            ours.append(product(number))
    return tuple(ours), tuple(theirs)
