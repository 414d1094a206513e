# SPDX-License-Identifier: Apache-2.0
"""Which pages of virtual memory the pages of a KV pool lie on."""

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
"""Page ids of a pool, 1-D."""
VmmPages = NDArray[np.int64]
"""Indices of VMM pages within a layer, 1-D."""


@dataclass(frozen=True)
class PoolGeometry:
    """A pool of rows that lie one after the other in the virtual memory of each layer.

    Page id p is the bytes [p * page_bytes, (p + 1) * page_bytes) of every layer. Native ids are
    1..page_count; row 0 takes the writes of padding. Physical memory comes in VMM pages of
    `vmm_page_bytes`, so that a page may lie on parts of several of them.
    """

    page_count: int
    page_bytes: int
    layer_count: int
    vmm_page_bytes: int

    def __post_init__(self) -> None:
        for name, lowest in (
            ("page_count", 1),
            ("page_bytes", 1),
            ("layer_count", 1),
            ("vmm_page_bytes", 1),
        ):
            value = getattr(self, name)
            if value < lowest:
                raise ValueError(f"{name} is {value}; it must be at least {lowest}")

    @property
    def row_count(self) -> int:
        return self.page_count + 1

    @property
    def vmm_page_count(self) -> int:
        """VMM pages of one layer."""
        return -(-self.row_count * self.page_bytes // self.vmm_page_bytes)

    @property
    def native_bytes(self) -> int:
        """What SGLang itself would allocate, over all layers."""
        return self.row_count * self.page_bytes * self.layer_count

    @property
    def layer_bytes(self) -> int:
        """Virtual memory of one layer."""
        return self.vmm_page_count * self.vmm_page_bytes

    @property
    def virtual_bytes(self) -> int:
        """Virtual memory of all layers."""
        return self.layer_bytes * self.layer_count

    @property
    def bundle_bytes(self) -> int:
        """Physical memory of one VMM page, which is mapped in all layers together."""
        return self.vmm_page_bytes * self.layer_count

    @property
    def floor_bytes(self) -> int:
        """Physical memory that is always mapped: that of row 0."""
        return len(self.vmm_pages_of(np.zeros(1, dtype=np.int64))) * self.bundle_bytes

    @property
    def straddling_count(self) -> int:
        """How many ids lie on more than one VMM page."""
        if self.page_bytes > self.vmm_page_bytes:
            return self.page_count
        edges = (self.row_count * self.page_bytes - 1) // self.vmm_page_bytes
        period = self.page_bytes // gcd(self.page_bytes, self.vmm_page_bytes)
        return edges - edges // period

    @property
    def straddling_share(self) -> float:
        return self.straddling_count / self.page_count

    def whole_count(self, vmm_pages: int) -> int:
        """How many ids lie wholly on any `vmm_pages` VMM pages of a layer, at least."""
        if self.page_bytes > self.vmm_page_bytes:
            return 0
        step = gcd(self.page_bytes, self.vmm_page_bytes)
        return vmm_pages * ((self.vmm_page_bytes + step) // self.page_bytes - 1)

    def span_of(self, ids: Ids) -> VmmPages:
        """On how many VMM pages each of `ids` lies."""
        start = ids * self.page_bytes
        last = (start + self.page_bytes - 1) // self.vmm_page_bytes
        span: VmmPages = last - start // self.vmm_page_bytes + 1
        return span

    def vmm_pages_of(self, ids: Ids) -> VmmPages:
        """The VMM pages that each of `ids` lies on, one id after the other."""
        if not ids.size:
            return ids
        span = self.span_of(ids)
        ends = span.cumsum()
        before = ids * self.page_bytes // self.vmm_page_bytes + span - ends
        pages: VmmPages = np.arange(ends[-1]) + before.repeat(span)
        return pages

    def ids_on(self, vmm_pages: VmmPages) -> Ids:
        """The ids that lie, at least in part, on any of `vmm_pages`; ascending, without row 0."""
        first = vmm_pages * self.vmm_page_bytes // self.page_bytes
        last = ((vmm_pages + 1) * self.vmm_page_bytes - 1) // self.page_bytes
        ids = [np.arange(low, high + 1) for low, high in zip(first, last, strict=True)]
        found = np.unique(np.concatenate([*ids, np.empty(0, dtype=np.int64)]))
        native: Ids = found[(found >= 1) & (found <= self.page_count)]
        return native
