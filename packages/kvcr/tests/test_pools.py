# SPDX-License-Identifier: Apache-2.0
"""Several host pools on one KVCR instance."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstrata.kvcr import ConfigError
from kvstrata.kvcr.layout import Component, HostPages
from kvstrata.kvcr.pools import HostPools


def pages(name: str, count: int, *sizes: int, address: int = 1000) -> HostPages:
    """Pages of dense components that lie one behind the other."""
    components = []
    for i, size in enumerate(sizes):
        components.append(Component.named(f"{name}.{i}", address, size, size, count))
        address += size * count
    return HostPages(name, 4, count, tuple(components))


KV = pages("kv", 100, 64, 64)
INDEXER = pages("indexer", 100, 16, address=50_000)
SWA = pages("swa", 20, 64, 64, address=70_000)
ANCHOR = HostPages("kv", 4, 100, ())


def test_components_of_one_size_share_a_kvcr_pool_whatever_pool_they_are_of() -> None:
    pools = HostPools.of([KV, INDEXER, SWA])
    assert pools.block_pools == {"64B": 64, "16B": 16}
    labels = [region.label for region in pools.regions()]
    assert labels == ["64B:kv.0", "64B:kv.1", "16B:indexer.0", "64B:swa.0", "64B:swa.1"]
    references = pools.named("swa").references("agent", 3)
    assert [reference.label for reference in references] == labels[3:]


def test_memory_that_two_pools_have_in_common_is_registered_once() -> None:
    alias = pages("draft", 100, 64, 64)
    pools = HostPools.of([KV, alias])
    assert [region.label for region in pools.regions()] == ["64B:kv.0", "64B:kv.1"]
    assert [r.label for r in pools.named("draft").references("agent", 1)] == [
        "64B:kv.0",
        "64B:kv.1",
    ]
    assert len(HostPools.of([KV, pages("draft", 100, 64, 64, address=1)]).regions()) == 4


def test_a_logical_anchor_has_a_name_and_nothing_to_register() -> None:
    pools = HostPools.of([ANCHOR, SWA])
    assert pools.named("kv").is_logical
    assert [region.label for region in pools.regions()] == ["64B:swa.0", "64B:swa.1"]
    assert pools.tier_pages(10_000).keys() == {"swa"}


def test_pools_of_equally_many_host_pages_get_equally_many_pages_of_the_tier() -> None:
    counts = HostPools.of([KV, INDEXER, SWA]).tier_pages(8_000)
    assert counts["kv"] == counts["indexer"]
    assert counts["kv"] > counts["swa"] > 1


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(0, 5_000),
)
def test_the_tier_fits_the_budget_and_every_pools_pages(
    shapes: list[tuple[int, int]], spare: int
) -> None:
    described = [
        pages(f"pool{i}", count, size, size + i % 2, address=1 + 10_000 * i)
        for i, (count, size) in enumerate(shapes)
    ]
    pools = HostPools.of(described)
    budget = sum(p.page_bytes for p in described) + spare
    counts, sizes = pools.tier_pages(budget), pools.tier_bytes(budget)
    assert min(counts.values()) >= 1
    assert sum(sizes.values()) == sum(counts[p.name] * p.page_bytes for p in described) <= budget
    shares = {p.name: Fraction(counts[p.name] - 1, p.page_count) for p in described}
    slack = {p.name: Fraction(1, p.page_count) for p in described}
    assert all(a - b < slack[y] for x, a in shares.items() for y, b in shares.items() if x != y)


def test_a_budget_below_one_page_of_each_pool_names_the_minimum() -> None:
    pools = HostPools.of([KV, INDEXER])
    assert pools.tier_pages(128 + 16) == {"kv": 1, "indexer": 1}
    with pytest.raises(ConfigError, match="at least 144: one page of each of kv, indexer"):
        pools.tier_pages(143)


def test_pools_without_bytes_are_refused() -> None:
    with pytest.raises(ConfigError, match="holds bytes"):
        HostPools.of([ANCHOR]).tier_pages(1 << 20)


def test_a_pool_that_was_not_registered_is_named() -> None:
    with pytest.raises(ValueError, match="'mamba'"):
        HostPools.of([KV]).named("mamba")
