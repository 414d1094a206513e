# SPDX-License-Identifier: Apache-2.0
"""The host pools of one attach, registered together and sharing one DRAM tier."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvcr.types import RegionDescriptor

from .errors import ConfigError
from .layout import Component, HostPages


@dataclass(frozen=True)
class HostPools:
    """Pools by name; components of one size share a KVCR pool, whichever host pool they are of.

    Memory that two pools have in common is one component under one label. Logical anchors are
    among the pools, but have nothing to register.
    """

    pools: Mapping[str, HostPages]

    @classmethod
    def of(cls, pools: Iterable[HostPages]) -> "HostPools":
        """Join pools of different names."""
        known: dict[tuple[int, int, int, int], Component] = {}

        def once(component: Component) -> Component:
            c = component
            place = (c.address, c.stride_bytes, c.size_bytes, c.count)
            return known.setdefault(place, component)

        return cls(
            {
                pages.name: dataclasses.replace(
                    pages, components=tuple(map(once, pages.components))
                )
                for pages in pools
            }
        )

    def named(self, name: str) -> HostPages:
        """A pool by its name; raises ValueError for one that is not registered."""
        try:
            return self.pools[name]
        except KeyError:
            raise ValueError(f"no host pool {name!r} is registered") from None

    @property
    def physical(self) -> tuple[HostPages, ...]:
        """The pools whose pages have bytes."""
        return tuple(pages for pages in self.pools.values() if not pages.is_logical)

    @property
    def block_pools(self) -> dict[str, int]:
        """Block size in bytes of each KVCR pool that these pools need."""
        return {
            component.block_pool: component.size_bytes
            for pages in self.physical
            for component in pages.components
        }

    def regions(self) -> list[RegionDescriptor]:
        """The registrations of all memory, each component once."""
        components = {c.label: c for pages in self.physical for c in pages.components}
        return [component.region() for component in components.values()]

    def tier_pages(self, dram_bytes: int) -> dict[str, int]:
        """How many pages of each physical pool a DRAM tier holds: one, and a share of the rest.

        Shares are in proportion to the host pools' bytes, so pools of equally many host pages get
        equally many pages. Raises ConfigError for a budget below one page of each.
        """
        minimum = sum(pages.page_bytes for pages in self.physical)
        if not minimum:
            raise ConfigError(
                "--hicache-storage-backend",
                "kvcr",
                "models with a host pool that holds bytes",
                "Choose another backend.",
            )
        if dram_bytes < minimum:
            names = ", ".join(pages.name for pages in self.physical)
            raise ConfigError(
                "dram_bytes",
                dram_bytes,
                f"at least {minimum}: one page of each of {names}",
                "Raise dram_bytes; a useful tier holds many thousand pages.",
            )
        host_bytes = sum(pages.page_bytes * pages.page_count for pages in self.physical)
        return {
            pages.name: 1 + (dram_bytes - minimum) * pages.page_count // host_bytes
            for pages in self.physical
        }

    def tier_bytes(self, dram_bytes: int) -> dict[str, int]:
        """How many bytes of a DRAM budget each KVCR pool gets; raises like `tier_pages`."""
        counts = self.tier_pages(dram_bytes)
        sizes = dict.fromkeys(self.block_pools, 0)
        for pages in self.physical:
            for component in pages.components:
                sizes[component.block_pool] += counts[pages.name] * component.size_bytes
        return sizes
