# SPDX-License-Identifier: Apache-2.0
"""How long compressed history has memory, and what a miss leaves of it."""

from collections.abc import Iterator

import pytest
import torch

from kvstrata.exact_id.limits import LimitStatus
from kvstrata.exact_id.ownership import C4, SWA
from kvstrata.exact_id.transaction import IdSpace
from kvstrata_host import vmm
from kvstrata_host.leases.model import (
    FULL_PAGES,
    PAGE_TOKENS,
    SWA_PAGES,
    Model,
    make_pool,
    pages_of,
)
from kvstrata_host.vmm import Call

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]

LAYERS = 2
"""C4 layers of the model."""
FULL = 160
"""Pages for which C4 has four VMM pages."""


@pytest.fixture
def long() -> Iterator[Model]:
    made = Model(make_pool(c4_size=FULL * 64, c128_size=FULL * 2), full_pages=FULL)
    yield made
    made.pools.close()


def test_a_straddling_page_whose_second_part_has_no_memory_gives_back_the_first(
    long: Model,
) -> None:
    pool, straddling = long.pools[C4], 112
    long.hand_out_next(straddling)
    assert pool.geometry.span_of(torch.tensor([straddling]).numpy()).tolist() == [2]
    swa = long.pools[SWA]
    assert swa.backing.mapped_count == 1, "page 1 of the window lies on the VMM page of row 0"
    before, bytes_before = long.picture(), vmm.state().created_bytes

    for layer in range(LAYERS):
        with vmm.fail_at(Call.CREATE, LAYERS + layer + 1):
            assert long.without_kernels(1) is None
        assert (long.picture(), vmm.state().created_bytes) == (before, bytes_before)

    assert long.without_kernels(1) is not None
    assert pool.backing.mapped_count == 3


def test_a_neighbour_on_the_same_vmm_page_keeps_its_bytes(long: Model) -> None:
    long.hand_out_next(112, 113)
    tokens = long.without_kernels(2)
    assert tokens is not None
    for number, layer in enumerate(long.pool.c4_kv_pool.kv_buffer):
        layer[112], layer[113] = 10 + number, 20 + number

    long.allocator.free(tokens[:PAGE_TOKENS])

    assert long.pools[C4].backing.mapped_pages.tolist() == [0, 2]
    for number, layer in enumerate(long.pool.c4_kv_pool.kv_buffer):
        assert layer[113].eq(20 + number).all()
    long.allocator.free(tokens[PAGE_TOKENS:])
    assert long.pools[C4].backing.mapped_pages.tolist() == [0]
    assert long.pool.c4_kv_pool.kv_buffer[0][113].eq(0).all(), "it had memory of its own"


def test_history_outlives_the_window_byte_for_byte_and_goes_with_its_full_pages(
    model: Model,
) -> None:
    tokens = model.start(SWA_PAGES)
    layers = [layer[1 : SWA_PAGES + 1] for layer in model.pool.c4_kv_pool.kv_buffer]
    for layer in layers:
        layer[:] = torch.randint(0, 255, layer.shape, dtype=torch.uint8)
    history = [layer.clone() for layer in layers]

    model.allocator.free_swa_segment(tokens, start_pos=0)
    assert model.pools[SWA].ledger.leased_ids.size == 0
    # The window's pages serve another request meanwhile.
    other = model.without_kernels(20)
    assert other is not None
    for layer in model.pool.c4_kv_pool.kv_buffer:
        layer[pages_of(other)] = 9

    for layer, kept in zip(layers, history, strict=True):
        assert torch.equal(layer, kept)
    model.allocator.free_full_segment(tokens, start_pos=0)
    assert model.pools[C4].ledger.leased_ids.tolist() == pages_of(other)


def test_a_c4_page_that_is_lost_shrinks_capacity_and_is_never_handed_out(long: Model) -> None:
    long.hand_out_next(60)
    capacity = long.allocator.full_available_size()

    # The second layer has no memory, and then the first cannot be unmapped.
    with vmm.fail_at(Call.CREATE, LAYERS), vmm.fail_at(Call.UNMAP, LAYERS + 1):
        assert long.without_kernels(1) is None

    lost = long.pools.lost_ids(IdSpace.FULL).tolist()
    assert 60 in lost
    assert long.allocator.full_available_size() == capacity - len(lost) * PAGE_TOKENS
    taken = long.without_kernels(1)
    assert taken is not None
    assert set(pages_of(taken)).isdisjoint(lost)
    assert long.pools.lost_ids(IdSpace.SWA).size == 0


def test_a_limit_of_c4_is_deferred_then_applied_then_lifted(model: Model) -> None:
    pool = model.pools[C4]
    start = pool.limit_state.limit_bytes
    tokens = model.allocator.full_attn_allocator.alloc(FULL_PAGES * PAGE_TOKENS)

    deferred = pool.set_memory_limit(pool.geometry.bundle_bytes, revision=1)
    assert deferred.status is LimitStatus.DEFERRED
    model.allocator.full_attn_allocator.free(tokens)
    assert pool.limit_state.status is LimitStatus.APPLIED
    on_vmm_page_0 = (2 << 20) // 37_440 - 1
    assert model.allocator.full_available_size() == on_vmm_page_0 * PAGE_TOKENS
    before = model.picture()
    assert model.without_kernels(1) is not None
    model.allocator.clear()
    assert model.picture().full == before.full
    pool.set_memory_limit(start, revision=2)

    assert model.allocator.full_available_size() == FULL_PAGES * PAGE_TOKENS


def test_a_miss_of_c4_keeps_the_window_free_too(model: Model) -> None:
    pool = model.pools[C4]
    pool.set_memory_limit(pool.geometry.bundle_bytes, revision=1)
    left_on_vmm_page_0 = (2 << 20) // 37_440 - 1 - 30
    assert left_on_vmm_page_0 < 30
    assert model.allocator.full_attn_allocator.alloc(30 * PAGE_TOKENS) is not None
    before = model.picture()

    assert model.without_kernels(30) is None

    assert model.picture() == before
    pool.set_memory_limit(pool.geometry.virtual_bytes, revision=2)
    assert model.without_kernels(30) is not None
