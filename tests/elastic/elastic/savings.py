# SPDX-License-Identifier: Apache-2.0
"""What the pools of a whole model take at several loads, against what they take natively."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Course = Literal["growing", "ebbing"]


@dataclass(frozen=True)
class PoolSize:
    """One pool: `page_bytes` is one page in one layer; the sizes are over all layers.

    `planned_bytes` is what exact-id's plan says SGLang takes natively, `made_bytes` what the pool
    that was made would take, or takes where it is native.
    """

    pool: str
    is_managed: bool
    why: str
    layers: int
    pages: int
    page_bytes: int
    planned_bytes: int
    made_bytes: int


@dataclass(frozen=True)
class Level:
    """The managed pools at one load; `live_share` is that of the full pages in use.

    `driver_bytes` and `committed_bytes` are as in a sample of the waves, from the start of this
    model on.
    """

    course: Course
    live_share: float
    live_pages: Mapping[str, int]
    mapped_bytes: Mapping[str, int]
    expected_bytes: Mapping[str, int]
    driver_bytes: int
    committed_bytes: int

    @property
    def managed_bytes(self) -> int:
        return sum(self.mapped_bytes.values())


@dataclass(frozen=True)
class Savings:
    """All pools of a model of `layers` layers for `tokens` tokens, and the loads in their order.

    A page that was compared when its context ended counts once for each pool.
    """

    layers: int
    tokens: int
    sizes: tuple[PoolSize, ...]
    levels: tuple[Level, ...]
    pages_compared: int
    pages_damaged: int

    @property
    def native_bytes(self) -> int:
        """What all pools take without the slices."""
        return sum(size.planned_bytes for size in self.sizes)

    @property
    def unmanaged_bytes(self) -> int:
        """What of it stays SGLang's own."""
        return sum(size.planned_bytes for size in self.sizes if not size.is_managed)

    def taken_bytes(self, level: Level) -> int:
        """What all pools take at a load."""
        return self.unmanaged_bytes + level.managed_bytes
