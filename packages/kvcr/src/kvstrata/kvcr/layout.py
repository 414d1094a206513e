# SPDX-License-Identifier: Apache-2.0
"""Where the pages of a HiCache host pool lie in memory, as KVCR wants to be told.

A page-first host pool keeps one dense block per component (K, V, ...) of a page. Addresses and
sizes are read from the pool's own ``get_page_buffer_meta``, never computed from its shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from kvcr.types import MemoryRef, RegionDescriptor

from .errors import ConfigError

SUPPORTED_LAYOUTS = ("page_first", "page_first_direct")


class HostPool(Protocol):
    """What is used of SGLang's ``HostKVCache``."""

    layout: str
    page_size: int
    page_num: int
    dtype: torch.dtype

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        """Addresses and sizes, in bytes, of the components of the pages at token indices."""


@dataclass(frozen=True)
class Component:
    """One component of every page: ``count`` blocks of ``size_bytes``, ``stride_bytes`` apart."""

    label: str
    address: int
    stride_bytes: int
    size_bytes: int
    count: int

    @property
    def block_pool(self) -> str:
        """Name of the KVCR pool that this component's blocks live in."""
        return self.label.partition(":")[0]


@dataclass(frozen=True)
class HostPages:
    """All pages of one host pool."""

    name: str
    page_size_tokens: int
    page_count: int
    components: tuple[Component, ...]

    @classmethod
    def of(cls, name: str, pool: HostPool) -> "HostPages":
        """Describe a pool; raises ConfigError for a layout whose pages are not dense blocks."""
        if pool.layout not in SUPPORTED_LAYOUTS:
            raise ConfigError(
                "--hicache-mem-layout",
                pool.layout,
                " or ".join(SUPPORTED_LAYOUTS),
                "Start the server with --hicache-mem-layout page_first.",
            )
        addresses, sizes = _page_meta(pool, 0)
        strides = [0] * len(sizes)
        if pool.page_num > 1:
            second, second_sizes = _page_meta(pool, 1)
            last, _ = _page_meta(pool, pool.page_num - 1)
            strides = [b - a for a, b in zip(addresses, second, strict=True)]
            regular = sizes == second_sizes and last == [
                address + stride * (pool.page_num - 1)
                for address, stride in zip(addresses, strides, strict=True)
            ]
            if not regular or any(s < size for s, size in zip(strides, sizes, strict=True)):
                raise ConfigError(
                    "--hicache-mem-layout",
                    pool.layout,
                    f"a {name} pool whose pages are equally spaced",
                    "This pool cannot be backed by KVCR.",
                )
        # KVCR's pools hold blocks of one size each.
        block_pools = {
            size: f"{name}.{i}" if len(set(sizes)) > 1 else name
            for i, size in enumerate(dict.fromkeys(sizes))
        }
        components = tuple(
            Component(f"{block_pools[size]}:{i}", address, stride, size, pool.page_num)
            for i, (address, stride, size) in enumerate(zip(addresses, strides, sizes, strict=True))
        )
        return cls(name, pool.page_size, pool.page_num, components)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all its components."""
        return sum(component.size_bytes for component in self.components)

    @cached_property
    def block_pools(self) -> dict[str, int]:
        """Block size in bytes of each KVCR pool that these pages need."""
        return {component.block_pool: component.size_bytes for component in self.components}

    def dram_pools(self, budget_bytes: int) -> dict[str, int]:
        """How many bytes of a DRAM budget each KVCR pool gets: as many whole pages as fit."""
        pages = budget_bytes // self.page_bytes
        sizes = dict.fromkeys(self.block_pools, 0)
        for component in self.components:
            sizes[component.block_pool] += pages * component.size_bytes
        return sizes

    def regions(self) -> list[RegionDescriptor]:
        """The registration of this pool's memory, one region per component."""
        return [
            RegionDescriptor(
                addr=component.address,
                stride=component.stride_bytes,
                count=component.count,
                size=component.size_bytes,
                label=component.label,
            )
            for component in self.components
        ]

    def references(self, agent: str, page: int) -> list[MemoryRef]:
        """References to every component of one page, by page index."""
        return [
            MemoryRef(end_point_name=agent, label=component.label, element_index=page)
            for component in self.components
        ]

    def page_indices(self, token_indices: torch.Tensor) -> Sequence[int]:
        """Page index of each run of ``page_size_tokens`` token indices; shape [tokens] -> [pages].

        Raises ValueError unless every run is one whole page of this pool.
        """
        size = self.page_size_tokens
        if token_indices.numel() % size:
            raise ValueError(f"{token_indices.numel()} token indices are not whole pages of {size}")
        runs = token_indices.reshape(-1, size)
        first = runs[:, 0]
        whole = torch.equal(runs, first[:, None] + torch.arange(size, device=runs.device))
        if not whole or bool((first % size).any()):
            raise ValueError("token indices do not form whole pages")
        pages: list[int] = (first // size).tolist()
        if pages and not 0 <= min(pages) <= max(pages) < self.page_count:
            raise ValueError(f"page indices reach beyond the {self.page_count} pages of the pool")
        return pages


def _page_meta(pool: HostPool, page: int) -> tuple[list[int], list[int]]:
    start = page * pool.page_size
    return pool.get_page_buffer_meta(torch.arange(start, start + pool.page_size))
