# SPDX-License-Identifier: Apache-2.0
"""Where the pages of a HiCache host pool lie in memory, as KVCR wants to be told.

A page-first host pool keeps one dense block per component of a page: K and V, or the temporal and
the convolution states of Mamba. Addresses and sizes are read from the pool's own
``get_page_buffer_meta``, never computed from its shape.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from kvcr.types import MemoryRef, RegionDescriptor

from .errors import ConfigError

SUPPORTED_LAYOUTS = ("page_first", "page_first_direct")

_PROBED_PAGES = 3


class HostPool(Protocol):
    """What is used of SGLang's host pools."""

    layout: str
    page_size: int
    size: int
    dtype: torch.dtype

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]] | None:
        """Addresses and sizes, in bytes, of the components of the pages at slot indices.

        Page by page; None from a logical anchor, whose pages have no bytes.
        """


@dataclass(frozen=True)
class Component:
    """One component of every page: ``count`` blocks of ``size_bytes``, ``stride_bytes`` apart."""

    label: str
    address: int
    stride_bytes: int
    size_bytes: int
    count: int

    @classmethod
    def named(
        cls, name: str, address: int, stride_bytes: int, size_bytes: int, count: int
    ) -> "Component":
        """A component labelled so that all components of one size share a KVCR pool."""
        return cls(f"{size_bytes}B:{name}", address, stride_bytes, size_bytes, count)

    @property
    def block_pool(self) -> str:
        """Name of the KVCR pool that this component's blocks live in."""
        return self.label.partition(":")[0]

    def region(self) -> RegionDescriptor:
        """The registration of this component's memory."""
        return RegionDescriptor(
            addr=self.address,
            stride=self.stride_bytes,
            count=self.count,
            size=self.size_bytes,
            label=self.label,
        )


@dataclass(frozen=True)
class HostPages:
    """All pages of one host pool; a logical anchor has no components.

    Args:
        name: SGLang's name of the pool.
        page_slots: indices per page: tokens, or 1 where a page is one state.
    """

    name: str
    page_slots: int
    page_count: int
    components: tuple[Component, ...]

    @classmethod
    def of(cls, name: str, pool: HostPool) -> "HostPages":
        """Describe a pool; raises ConfigError for one whose pages are not dense, fixed blocks."""
        _check_kind(name, pool)
        page_count = pool.size // pool.page_size
        probed = min(_PROBED_PAGES, page_count)
        meta = _page_meta(pool, range(probed))
        if meta is None:
            return cls(name, pool.page_size, page_count, ())
        if pool.layout not in SUPPORTED_LAYOUTS:
            raise ConfigError(
                "--hicache-mem-layout",
                pool.layout,
                " or ".join(SUPPORTED_LAYOUTS),
                "Start the server with --hicache-mem-layout page_first.",
            )
        pages = _split(meta, probed)
        last = _split(_page_meta(pool, [page_count - 1]) or ([], []), 1)
        first = pages[0]
        strides = [b - a for (a, _), (b, _) in zip(first, pages[-1], strict=True)]
        strides = [stride // max(probed - 1, 1) for stride in strides]

        def expected(page: int) -> list[tuple[int, int]]:
            moved = zip(first, strides, strict=True)
            return [(address + page * stride, size) for (address, size), stride in moved]

        dense = page_count == 1 or all(
            stride >= size > 0 for (_, size), stride in zip(first, strides, strict=True)
        )
        regular = pages == [expected(i) for i in range(probed)] and last == [
            expected(page_count - 1)
        ]
        if not first or not dense or not regular:
            raise ConfigError(
                "--hicache-mem-layout",
                pool.layout,
                f"a {name} pool of equally spaced pages",
                f"Choose another backend: KVCR cannot hold pages of {type(pool).__name__}.",
            )
        components = tuple(
            Component.named(f"{name}.{i}", address, stride, size, page_count)
            for i, ((address, size), stride) in enumerate(zip(first, strides, strict=True))
        )
        return cls(name, pool.page_size, page_count, components)

    @property
    def is_logical(self) -> bool:
        """Whether the pool only numbers pages whose bytes are in other pools."""
        return not self.components

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all its components."""
        return sum(component.size_bytes for component in self.components)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels of a page's parts, in the order of its references."""
        return tuple(component.label for component in self.components)

    def references(self, agent: str, page: int) -> list[MemoryRef]:
        """References to every component of one page, by page index."""
        return list(_references(agent, self.labels, page))

    def page_indices(self, slot_indices: torch.Tensor) -> Sequence[int]:
        """Page index of each run of ``page_slots`` slot indices; shape [slots] -> [pages].

        Raises ValueError unless every run is one whole page of this pool.
        """
        size = self.page_slots
        slots = slot_indices.cpu().numpy().astype(np.int64, copy=False)
        if slots.size % size:
            raise ValueError(f"{slots.size} {self.name} indices are no pages of {size}")
        pages: list[int] = [slot // size for slot in slots[::size].tolist()]
        # Few calls of NumPy's, each of which costs most where its code is in no cache.
        whole = np.add.outer([page * size for page in pages], np.arange(size))
        if slots.tobytes() != whole.tobytes():
            raise ValueError(f"{self.name} indices do not form whole pages")
        if pages and not 0 <= min(pages) <= max(pages) < self.page_count:
            raise ValueError(f"page indices reach beyond the {self.page_count} {self.name} pages")
        return pages


@functools.lru_cache(maxsize=1 << 15)
def _references(agent: str, labels: tuple[str, ...], page: int) -> tuple[MemoryRef, ...]:
    """Kept, because making one costs KVCR's frozen dataclass more than all else about a page."""
    return tuple(
        [MemoryRef(end_point_name=agent, label=label, element_index=page) for label in labels]
    )


def _check_kind(name: str, pool: HostPool) -> None:
    """Refuse pools whose indices do not stand for bytes of this process at a fixed place."""
    if getattr(pool, "dcp_size", 1) > 1:
        raise ConfigError(
            "--dcp-size", getattr(pool, "dcp_size", 1), "1", "Do not spread a page over ranks."
        )
    # From SGLang 0.5.21 on.
    if getattr(pool, "shared_allocation_domain", None) is not None:
        raise ConfigError(
            "--enable-unified-memory",
            "set",
            "unset",
            f"Unset it: the pages of the {name} pool would move while KVCR writes to them.",
        )
    if getattr(pool, "_is_dummy", False):
        raise ConfigError(
            "--hicache-storage-backend",
            "kvcr",
            "host pools of every rank's own",
            f"The {name} pool of this rank has no memory: choose another backend.",
        )


def _page_meta(pool: HostPool, pages: Sequence[int]) -> tuple[list[int], list[int]] | None:
    slots = torch.arange(pool.page_size)
    starts = torch.tensor([page * pool.page_size for page in pages])
    return pool.get_page_buffer_meta((starts[:, None] + slots).reshape(-1))


def _split(meta: tuple[list[int], list[int]], pages: int) -> list[list[tuple[int, int]]]:
    """Address and size of each component, page by page."""
    blocks = list(zip(*meta, strict=True))
    per_page = len(blocks) // pages
    return [blocks[i * per_page : (i + 1) * per_page] for i in range(pages)]
