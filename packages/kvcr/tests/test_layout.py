# SPDX-License-Identifier: Apache-2.0
"""The described blocks are SGLang's own: checked against real host pools, byte by byte."""

import ctypes
from typing import Any

import pytest
import torch

from kvstrata.kvcr import ConfigError
from kvstrata.kvcr.layout import SUPPORTED_LAYOUTS, HostPages
from kvstrata_host.rank import PAGE_TOKENS, Kind, make_pools

KINDS: tuple[Kind, ...] = ("mha", "mla")


@pytest.fixture(params=[(k, layout) for k in KINDS for layout in SUPPORTED_LAYOUTS], ids="-".join)
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


@pytest.mark.parametrize("kind", KINDS)
def test_layer_first_pages_are_refused_with_the_flag_to_set(kind: Kind) -> None:
    pool = make_pools(kind, "layer_first")[1]
    with pytest.raises(ConfigError, match="--hicache-mem-layout is 'layer_first'") as caught:
        HostPages.of("kv", pool)
    assert "page_first" in caught.value.allowed


class UnevenPool:
    """Two components of different sizes; SGLang has such pools for models with unequal K and V."""

    layout = "page_first"
    page_size = 2
    size = 8
    dtype = torch.uint8
    gap = 0

    step = 8

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        pages = indices[::2] // 2
        addresses = [
            address
            for page in pages.tolist()
            for address in (1000 + self.step * page + self.gap * (page == 3), 5000 + 6 * page)
        ]
        return addresses, [8, 6] * len(pages)


def test_components_are_labelled_by_size_and_place() -> None:
    pages = HostPages.of("kv", UnevenPool())
    assert [component.label for component in pages.components] == ["8B:kv.0", "6B:kv.1"]
    assert [component.stride_bytes for component in pages.components] == [8, 6]
    assert pages.page_count == 4


@pytest.mark.parametrize(("gap", "step"), [(1, 8), (0, 7), (0, 0), (0, -8)])
def test_pages_that_are_not_equally_spaced_blocks_are_refused(gap: int, step: int) -> None:
    pool = UnevenPool()
    pool.gap, pool.step = gap, step
    with pytest.raises(ConfigError, match="equally spaced"):
        HostPages.of("kv", pool)


@pytest.mark.parametrize(
    ("attribute", "value", "setting"),
    [
        ("dcp_size", 2, "--dcp-size"),
        ("shared_allocation_domain", object(), "--enable-unified-memory"),
        ("_is_dummy", True, "--hicache-storage-backend"),
    ],
)
def test_pools_without_own_pages_at_fixed_places_are_refused_by_name(
    attribute: str, value: object, setting: str
) -> None:
    pool = UnevenPool()
    setattr(pool, attribute, value)
    with pytest.raises(ConfigError) as caught:
        HostPages.of("kv", pool)
    assert caught.value.setting == setting


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
    assert pages.page_indices(torch.tensor([6, 7, 0, 1], dtype=torch.int32)) == [3, 0]
    assert pages.page_indices(torch.tensor([], dtype=torch.int64)) == []
