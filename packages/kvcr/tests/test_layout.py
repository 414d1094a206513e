# SPDX-License-Identifier: Apache-2.0
"""The described blocks are SGLang's own: checked against real host pools, byte by byte."""

import ctypes
from typing import Any

import pytest
import torch

from kvstrata.kvcr import ConfigError
from kvstrata.kvcr.layout import HostPages

from .replica import LAYOUTS, PAGE_TOKENS, make_pools

KINDS = ("mha", "mla")


@pytest.fixture(params=[(k, layout) for k in KINDS for layout, _ in LAYOUTS], ids="-".join)
def pool(request: pytest.FixtureRequest) -> Any:
    return make_pools(*request.param)[1]


def page_of(pool: Any, page: int) -> torch.Tensor:
    """A page's slice of the pool's buffer, by the layout's definition."""
    buffer = pool.kv_buffer
    components = buffer if buffer.shape[0] == 2 else buffer[None]
    place: int | slice = page
    if pool.layout == "page_first":
        place = slice(page * PAGE_TOKENS, (page + 1) * PAGE_TOKENS)
    blocks: torch.Tensor = components[:, place]
    return blocks


def test_the_blocks_of_a_page_are_exactly_its_bytes(pool: Any) -> None:
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape).to(pool.kv_buffer.dtype))
    pages = HostPages.of("kv", pool)
    assert pages.page_count == pool.page_num
    for page in (0, 1, pages.page_count - 1):
        blocks = [
            ctypes.string_at(c.address + page * c.stride_bytes, c.size_bytes)
            for c in pages.components
        ]
        expected = page_of(pool, page).contiguous().view(torch.uint8).numpy().tobytes()
        assert b"".join(blocks) == expected


def test_the_blocks_cover_the_buffer_once(pool: Any) -> None:
    pages = HostPages.of("kv", pool)
    assert pages.page_bytes * pages.page_count == pool.kv_buffer.numel() * pool.kv_buffer.itemsize
    starts = {
        component.address + page * component.stride_bytes
        for component in pages.components
        for page in range(pages.page_count)
    }
    assert len(starts) == len(pages.components) * pages.page_count


def test_regions_and_references_use_the_same_labels(pool: Any) -> None:
    pages = HostPages.of("kv", pool)
    labels = [region.label for region in pages.regions()]
    assert labels == [reference.label for reference in pages.references("agent", 1)]
    assert set(pages.block_pools) == {label.partition(":")[0] for label in labels}


def test_the_dram_budget_holds_whole_pages(pool: Any) -> None:
    pages = HostPages.of("kv", pool)
    sizes = pages.dram_pools(3 * pages.page_bytes + 1)
    assert sum(sizes.values()) == 3 * pages.page_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_layer_first_pages_are_refused_with_the_flag_to_set(kind: str) -> None:
    pool = make_pools(kind, "layer_first")[1]
    with pytest.raises(ConfigError, match="--hicache-mem-layout is 'layer_first'") as caught:
        HostPages.of("kv", pool)
    assert "page_first" in caught.value.allowed


class UnevenPool:
    """Two components of different sizes; SGLang has such pools for models with unequal K and V."""

    layout = "page_first"
    page_size = 2
    page_num = 4
    dtype = torch.uint8
    gap = 0

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        page = int(indices[0]) // 2
        return [1000 + 8 * page + self.gap * page**2, 5000 + 6 * page], [8, 6]


def test_components_of_unequal_size_get_a_kvcr_pool_each() -> None:
    pages = HostPages.of("kv", UnevenPool())
    assert pages.block_pools == {"kv.0": 8, "kv.1": 6}
    assert [component.label for component in pages.components] == ["kv.0:0", "kv.1:1"]
    assert pages.dram_pools(30) == {"kv.0": 16, "kv.1": 12}


def test_pages_that_are_not_equally_spaced_are_refused() -> None:
    pool = UnevenPool()
    pool.gap = 1
    with pytest.raises(ConfigError, match="equally spaced"):
        HostPages.of("kv", pool)


@pytest.mark.parametrize(
    "indices",
    [[0], [0, 2], [1, 2], [1, 0], [0, 1, 3, 4], [8, 9], [-2, -1]],
    ids=str,
)
def test_token_indices_that_are_not_whole_pages_are_refused(indices: list[int]) -> None:
    pages = HostPages.of("kv", UnevenPool())
    with pytest.raises(ValueError, match="page"):
        pages.page_indices(torch.tensor(indices))


def test_token_indices_become_page_indices_in_order() -> None:
    pages = HostPages.of("kv", UnevenPool())
    assert pages.page_indices(torch.tensor([6, 7, 0, 1])) == [3, 0]
    assert pages.page_indices(torch.tensor([], dtype=torch.int64)) == []
