# SPDX-License-Identifier: Apache-2.0
"""Memory at a live load, against what native pools would have."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Holding:
    """One pool at one moment, over all layers.

    Args:
        pool: its name.
        native_bytes: what SGLang itself would have allocated.
        mapped_bytes: physical memory.
        expected_bytes: that of the VMM pages on which row 0 or a live page lies.
        live_bytes: the live pages alone.
    """

    pool: str
    native_bytes: int
    mapped_bytes: int
    expected_bytes: int
    live_bytes: int


@dataclass(frozen=True)
class Moment:
    """All managed pools at one moment of the load.

    Args:
        load: the share of the full pages that are live.
        history: how the load came to be so.
    """

    load: float
    history: str
    holdings: tuple[Holding, ...]

    @property
    def native_bytes(self) -> int:
        return sum(each.native_bytes for each in self.holdings)

    @property
    def mapped_bytes(self) -> int:
        return sum(each.mapped_bytes for each in self.holdings)

    @property
    def live_bytes(self) -> int:
        return sum(each.live_bytes for each in self.holdings)

    @property
    def share(self) -> float:
        """Physical memory as a share of what native pools have."""
        return self.mapped_bytes / self.native_bytes

    @property
    def exact(self) -> bool:
        """Every pool has memory where a live page needs some, and nowhere else."""
        return all(each.mapped_bytes == each.expected_bytes for each in self.holdings)


def kept(moments: Sequence[Moment]) -> bool:
    """Exact at each of several moments, of which one has less memory than another."""
    shares = [moment.share for moment in moments]
    return len(set(shares)) > 1 and all(moment.exact for moment in moments)
