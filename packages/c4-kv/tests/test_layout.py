# SPDX-License-Identifier: Apache-2.0
"""What SGLang's own accessors write to and read from a managed C4 pool, beside a native one."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kvstrata.exact_id.discovery import managed_pools_of
from kvstrata.exact_id.ownership import C4
from kvstrata_host import vmm
from kvstrata_host.leases.model import PAGE_TOKENS, make_pool
from kvstrata_host.leases.pair import Pair, paired

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]

PAGES = 60
C4_LAYERS = (1, 3)
C4_TOKENS = PAGE_TOKENS // 4
# The first and the last of some pages, among them 56, which lies on two VMM pages.
LOCATIONS = torch.tensor(
    [page * C4_TOKENS + row for page in (1, 2, 55, 56, 57, PAGES) for row in (0, 1, 63)]
)
STRADDLING = 56


def c4_layers(pool: Any) -> Any:
    return pool.c4_kv_pool.kv_buffer


@pytest.fixture
def pair() -> Iterator[Pair]:
    with paired(c4_layers, PAGES) as made:
        yield made


@pytest.fixture
def uniform() -> Iterator[Pair]:
    """With the layout of the TRT-LLM backend: FP8 alone, without scales."""
    from sglang.srt.runtime_context import get_context

    with (
        get_context().override_server_args(dsv4_attn_backend="trtllm"),
        paired(c4_layers, PAGES) as made,
    ):
        yield made


def packed(seed: int) -> Any:
    """A random row for each of LOCATIONS, as SGLang's compressor packs them."""
    from sglang.kernels.ops.attention.dsv4.index_buf_accessor import NopeFp8RopeBf16Pack

    random, count = torch.Generator().manual_seed(seed), LOCATIONS.numel()
    return NopeFp8RopeBf16Pack(
        torch.randn(count, 448, generator=random).to(torch.float8_e4m3fn),
        torch.randn(count, 64, generator=random).bfloat16(),
        torch.randint(0, 255, (count, 7), dtype=torch.uint8, generator=random),
    )


def test_the_pool_has_the_layout_of_a_native_one_and_no_buffer_of_its_own(pair: Pair) -> None:
    native, managed = (pool.c4_kv_pool for pool in pair.pools)

    assert isinstance(managed, type(native))
    for attribute in ("shape", "dtype", "device"):
        assert [getattr(each, attribute) for each in managed.kv_buffer] == [
            getattr(each, attribute) for each in native.kv_buffer
        ]
    assert [each.stride() for each in managed.kv_buffer] == [(37_440, 1)] * 2
    for attribute in ("bytes_per_page_padded", "kv_cache_total_dim", "size", "page_size"):
        assert getattr(managed, attribute) == getattr(native, attribute)
    assert pair.model.pools[C4].geometry.page_bytes == 37_440
    assert pair.model.pools[C4].mapped_bytes == 2 * 2 * (2 << 20), "60 pages of each layer"


@pytest.mark.parametrize("accessor", ["execute", "torch"])
def test_a_setter_writes_what_it_writes_to_a_native_pool(pair: Pair, accessor: str) -> None:
    from sglang.kernels.ops.attention.dsv4.index_buf_accessor import SetKAndS

    for number, layer in enumerate(C4_LAYERS):
        rows = packed(seed=layer)
        for pool in pair.pools:
            if accessor == "execute":
                pool.set_extra_key_buffer(layer, LOCATIONS, rows)
            else:
                part = pool.c4_kv_pool
                SetKAndS.torch(part, part.kv_buffer[number], LOCATIONS, rows)

        native, managed = pair.rows(number)
        assert native[STRADDLING - 1].any()
        assert torch.equal(managed, native)
        managed[STRADDLING - 1, -64] += 1
        assert not torch.equal(managed, native), "a byte that differs is seen"
    assert not torch.equal(pair.rows(0)[1], pair.rows(1)[1]), "a layer has bytes of its own"


def test_the_interpreted_fused_store_writes_what_it_writes_to_a_native_pool(pair: Pair) -> None:
    from sglang.kernels.ops.kvcache.triton_store_cache import triton_fused_store_cache

    latent = torch.randn(LOCATIONS.numel(), 512, generator=torch.Generator().manual_seed(1))
    for pool in pair.pools:
        part = pool.c4_kv_pool
        triton_fused_store_cache(
            latent.bfloat16(),
            part.kv_buffer[0],
            LOCATIONS.int(),
            page_size=part.page_size,
            type="flashmla",
        )

    native, managed = pair.rows(0)
    assert native.any()
    assert torch.equal(managed, native)


def test_a_getter_reads_what_was_set(pair: Pair) -> None:
    rows = packed(seed=5)
    for pool in pair.pools:
        pool.set_extra_key_buffer(C4_LAYERS[1], LOCATIONS, rows)

    native, managed = (pool.get_extra_key_buffer(C4_LAYERS[1]) for pool in pair.pools)

    assert managed.shape == native.shape
    assert managed.dtype == native.dtype
    assert torch.equal(
        managed.view(torch.uint8)[1 : PAGES + 1], native.view(torch.uint8)[1 : PAGES + 1]
    )
    assert {pool.get_extra_key_page_size(C4_LAYERS[1]) for pool in pair.pools} == {C4_TOKENS}
    page, row = STRADDLING, 1
    at = page * C4_TOKENS + row
    nope = managed.view(torch.uint8)[page, row * 576 : row * 576 + 448]
    place = LOCATIONS.tolist().index(at)
    assert torch.equal(nope, rows.k_nope_fp8[place].view(torch.uint8))


def test_uniform_fp8_is_managed_with_its_own_layout(uniform: Pair) -> None:
    latent = torch.randn(LOCATIONS.numel(), 512, generator=torch.Generator().manual_seed(2))
    for pool in uniform.pools:
        pool.set_extra_key_buffer_fused(C4_LAYERS[0], LOCATIONS, latent)

    native, managed = uniform.rows(0)
    assert uniform.model.pools[C4].geometry.page_bytes == 32_768
    assert uniform.model.pools["swa"].geometry.page_bytes == 131_072
    assert {pool.c4_kv_pool.kv_buffer[0].dtype for pool in uniform.pools} == {torch.float8_e4m3fn}
    assert native.any()
    assert torch.equal(managed, native)
    for pool in uniform.pools:
        pool.set_swa_key_buffer_radix_fused(0, LOCATIONS[:3], latent[:3])
    swa = [pool.swa_kv_pool.kv_buffer[0].view(torch.uint8)[0] for pool in uniform.pools]
    assert swa[0].any()
    assert torch.equal(*swa)


def test_making_pools_maps_row_0_alone_and_nothing_of_sglangs() -> None:
    before = vmm.state().created_bytes

    pool = make_pool()

    pools = managed_pools_of(pool)
    assert pools is not None
    # kvcached keeps a page of zeros for each pool.
    row_0 = sum(each.geometry.floor_bytes for each in pools)
    assert vmm.state().created_bytes - before == row_0 + len(list(pools)) * (2 << 20)
    pools.close()
