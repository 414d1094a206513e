# SPDX-License-Identifier: Apache-2.0
"""What SGLang's own accessors write to and read from managed index keys, beside native ones."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kvstrata.exact_id.ownership import INDEXER
from kvstrata_host.leases.pair import Pair, paired

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]

PAGES = 500
C4_LAYERS = (1, 3)
KEYS = 64
"""Index keys of a page."""
# Ids that lie on two VMM pages of 2 MiB: of 8,448 bytes, then of 4,352 bytes.
STRADDLING = {"fp8": 248, "fp4": 481}
PROBED = {
    layout: torch.tensor([1, 2, at - 1, at, at + 1, PAGES]) for layout, at in STRADDLING.items()
}
# The first two and the last of the keys of each of these pages.
LOCATIONS = {
    layout: (pages[:, None] * KEYS + torch.tensor([0, 1, 63])).flatten()
    for layout, pages in PROBED.items()
}


def indexer_layers(pool: Any) -> Any:
    return pool.c4_indexer_kv_pool.index_k_with_scale_buffer


@pytest.fixture
def fp8() -> Iterator[Pair]:
    with paired(indexer_layers, PAGES, c4_size=PAGES * 64, c128_size=PAGES * 2) as made:
        yield made


@pytest.fixture
def fp4() -> Iterator[Pair]:
    from sglang.srt.runtime_context import get_context

    with (
        get_context().override_server_args(enable_deepseek_v4_fp4_indexer=True),
        paired(indexer_layers, PAGES, c4_size=PAGES * 64, c128_size=PAGES * 2) as made,
    ):
        yield made


def random(width: int, seed: int) -> torch.Tensor:
    """A row for each of the locations of a layout."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(LOCATIONS["fp8"].numel(), width, generator=generator)


def write(pair: Pair, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Set FP8 keys and scales in every layer of both pools; returns those of the last layer."""
    for layer in C4_LAYERS:
        keys = random(128, seed + layer).to(torch.float8_e4m3fn)
        scales = random(1, seed + layer + 10)
        for pool in pair.pools:
            pool.set_index_k_scale_buffer(layer, LOCATIONS["fp8"], keys, scales)
    return keys, scales


@pytest.mark.parametrize(("layout", "page_bytes"), [("fp8", 8_448), ("fp4", 4_352)])
def test_the_pool_has_the_layout_of_a_native_one_and_no_buffer_of_its_own(
    layout: str, page_bytes: int, request: pytest.FixtureRequest
) -> None:
    pair: Pair = request.getfixturevalue(layout)
    native, managed = (pool.c4_indexer_kv_pool for pool in pair.pools)

    assert isinstance(managed, type(native))
    for attribute in ("shape", "dtype", "device"):
        assert [getattr(each, attribute) for each in managed.index_k_with_scale_buffer] == [
            getattr(each, attribute) for each in native.index_k_with_scale_buffer
        ]
    assert [each.stride() for each in managed.index_k_with_scale_buffer] == [(page_bytes, 1)] * 2
    for attribute in ("size", "page_size", "index_head_dim", "use_fp4_indexer"):
        assert getattr(managed, attribute) == getattr(native, attribute)
    assert pair.model.pools[INDEXER].geometry.page_bytes == page_bytes
    vmm_pages = -(-(PAGES + 1) * page_bytes // (2 << 20))
    assert pair.model.pools[INDEXER].mapped_bytes == vmm_pages * 2 * (2 << 20)


def test_the_fp8_setter_writes_what_it_writes_to_a_native_pool(fp8: Pair) -> None:
    write(fp8)

    for layer in (0, 1):
        native, managed = fp8.rows(layer)
        assert native[STRADDLING["fp8"] - 1].any()
        assert torch.equal(managed, native)
    assert not torch.equal(fp8.rows(0)[1], fp8.rows(1)[1]), "a layer has bytes of its own"
    managed[STRADDLING["fp8"] - 1, -1] += 1
    assert not torch.equal(managed, native), "a byte that differs is seen"


def gather(pool: Any, pages: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """SGLang's reader of keys with scales, as its attention calls it."""
    found: tuple[torch.Tensor, ...] = pool.get_index_k_scale_buffer(
        C4_LAYERS[1],
        torch.tensor([pages.numel() * KEYS], dtype=torch.int32),
        pages[None].int(),
        pages.numel() * KEYS,
        pages.numel() * KEYS,
    )
    return found


def keys_and_scales(accessor: str) -> Callable[[Any, torch.Tensor], tuple[torch.Tensor, ...]]:
    """One of SGLang's readers for keys and one for scales."""

    def read(pool: Any, pages: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from sglang.kernels.ops.attention.dsa.index_buf_accessor import GetK, GetS

        part = pool.c4_indexer_kv_pool
        buffer = pool.get_index_k_with_scale_buffer(C4_LAYERS[1])
        keys, scales = (
            getattr(reader, accessor)(part, buffer, pages.numel() * KEYS, pages)
            for reader in (GetK, GetS)
        )
        return keys, scales

    return read


READERS = {
    "torch": keys_and_scales("slow"),
    "Triton": keys_and_scales("triton"),
    "Triton, together": gather,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_an_fp8_getter_reads_what_was_set(
    fp8: Pair, read: Callable[[Any, torch.Tensor], tuple[torch.Tensor, ...]]
) -> None:
    keys, scales = write(fp8, seed=3)

    native, managed = (read(pool, PROBED["fp8"]) for pool in fp8.pools)

    for one, other in zip(native, managed, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    found = managed[0].view(torch.uint8).view(-1, 128)[:KEYS][[0, 1, 63]]
    assert torch.equal(found, keys[:3].view(torch.uint8))
    found = managed[1].view(torch.uint8).view(-1, 4)[:KEYS][[0, 1, 63]]
    assert torch.equal(found, scales[:3].view(torch.uint8))


def test_the_interpreted_fused_store_writes_what_it_writes_to_a_native_pool(fp8: Pair) -> None:
    from sglang.kernels.ops.kvcache.triton_store_cache import triton_fused_store_cache

    keys = random(128, seed=1).bfloat16()
    for pool in fp8.pools:
        part = pool.c4_indexer_kv_pool
        triton_fused_store_cache(
            keys,
            part.index_k_with_scale_buffer[0],
            LOCATIONS["fp8"].int(),
            page_size=part.page_size,
            type="indexer",
        )

    native, managed = fp8.rows(0)
    assert native.any()
    assert torch.equal(managed, native)


def test_the_fp4_setter_writes_what_it_writes_to_a_native_pool(fp4: Pair) -> None:
    for layer in C4_LAYERS:
        keys = random(128, layer).bfloat16()
        for pool in fp4.pools:
            pool.set_index_k_fp4(layer, LOCATIONS["fp4"], keys)

    for layer in (0, 1):
        native, managed = fp4.rows(layer)
        assert native[STRADDLING["fp4"] - 1].any()
        assert torch.equal(managed, native)
    buffers = [pool.get_index_k_with_scale_buffer(C4_LAYERS[1]) for pool in fp4.pools]
    assert torch.equal(*(buffer[1 : PAGES + 1] for buffer in buffers))
    managed[STRADDLING["fp4"] - 1, 0] += 1
    assert not torch.equal(managed, native), "a byte that differs is seen"
