# SPDX-License-Identifier: Apache-2.0
"""Managed SWA of a real DeepSeek-V4 pool, with SGLang's allocators, over the real kvcached."""

from collections.abc import Iterator

import pytest
import torch

from kvstrata.exact_id import ownership
from kvstrata.exact_id.errors import LeaseError, PoolFailedError, SetupError
from kvstrata.exact_id.limits import LimitStatus
from kvstrata.exact_id.ownership import C4, SWA, Claim
from kvstrata.exact_id.pool import ManagedPool
from kvstrata.exact_id.transaction import IdSpace
from kvstrata_host import vmm
from kvstrata_host.leases.frees import FREES, Free, check_free_gives_back
from kvstrata_host.leases.model import (
    FULL_PAGES,
    PAGE_TOKENS,
    RATIOS,
    SWA_PAGES,
    Model,
    make_pool,
    pages_of,
)
from kvstrata_host.vmm import Call

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]

LAYERS = len(RATIOS)
ROWS_OF_VMM_PAGE_0 = (2 << 20) // 149_760
WHOLE_VMM_PAGES = 3


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model of which SWA and C4 are managed, as a slice for C4 would have it."""
    monkeypatch.setitem(ownership._claims, C4, Claim(C4, IdSpace.FULL, "the test"))
    made = Model()
    yield made
    made.pools.close()


def swa_pages_of(model: Model, tokens: torch.Tensor) -> list[int]:
    swa = model.allocator.full_to_swa_index_mapping[tokens]
    return pages_of(swa[swa > 0])


def status_of(pool: ManagedPool) -> LimitStatus:
    return pool.limit_state.status


def mapped(model: Model, pool: str) -> int:
    return model.pools[pool].mapped_bytes


def test_the_pool_has_the_layout_of_a_native_one_and_no_buffer_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENABLE_KVCACHED", "0")
    native = make_pool().swa_kv_pool
    monkeypatch.setenv("ENABLE_KVCACHED", "1")
    before = vmm.state().created_bytes

    model = Model()

    made = model.pool.swa_kv_pool
    assert isinstance(made, type(native))
    assert [each.shape for each in made.kv_buffer] == [each.shape for each in native.kv_buffer]
    assert [each.stride() for each in made.kv_buffer] == [
        each.stride() for each in native.kv_buffer
    ]
    assert {each.dtype for each in made.kv_buffer} == {each.dtype for each in native.kv_buffer}
    for attribute in ("bytes_per_page_padded", "kv_cache_total_dim", "size", "page_size"):
        assert getattr(made, attribute) == getattr(native, attribute)
    assert vmm.state().created_bytes - before == (LAYERS + 1) * (2 << 20), "row 0 and the zeros"
    model.pools.close()


def test_sglangs_own_setter_writes_what_it_writes_to_a_native_pool(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.kernels.ops.attention.dsv4.index_buf_accessor import NopeFp8RopeBf16Pack

    monkeypatch.setenv("ENABLE_KVCACHED", "0")
    native = make_pool()
    tokens = model.start(SWA_PAGES)
    where = model.allocator.translate_loc_from_full_to_swa(tokens[:: PAGE_TOKENS // 2])
    count = where.numel()
    random = torch.Generator().manual_seed(0)
    pack = NopeFp8RopeBf16Pack(
        torch.randn(count, 448, generator=random).to(torch.float8_e4m3fn),
        torch.randn(count, 64, generator=random).bfloat16(),
        torch.randint(0, 255, (count, 7), dtype=torch.uint8, generator=random),
    )
    for layer in range(LAYERS):
        for buffer in model.pool.swa_kv_pool.kv_buffer:
            buffer[1:] = 0

        for each in (native, model.pool):
            each.set_swa_key_buffer_radix(layer, where, pack)

    written = native.swa_kv_pool.kv_buffer[LAYERS - 1]
    assert written.any()
    assert torch.equal(model.pool.swa_kv_pool.kv_buffer[LAYERS - 1], written)


def test_ids_and_free_lists_are_those_that_sglang_chooses_itself(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_KVCACHED", "0")
    native = Model()
    assert type(native.allocator.swa_attn_allocator).__name__ == "PagedTokenToKVPoolAllocator"

    def run(each: Model) -> list[object]:
        one = each.start(5)
        other = each.start(7)
        each.allocator.free_swa_segment(one[: 3 * PAGE_TOKENS], start_pos=0)
        steps = [each.decode(one, other)]
        each.allocator.free(other)
        each.allocator.free_full_segment(one[: 3 * PAGE_TOKENS], start_pos=0)
        steps.append(each.start(4))
        found = each.picture()
        return [*(step.tolist() for step in steps if step is not None), found.full, found.swa]

    assert run(model) == run(native)


def test_extending_and_decoding_lease_the_pages_that_they_take(model: Model) -> None:
    tokens = model.start(SWA_PAGES - 2)
    nxt = model.decode(tokens)

    assert nxt is not None
    leased = model.pools[SWA].ledger.leased_ids.tolist()
    assert leased == swa_pages_of(model, torch.cat([tokens, nxt]))
    assert len(leased) == SWA_PAGES - 1
    assert mapped(model, SWA) == WHOLE_VMM_PAGES * LAYERS * (2 << 20)


def test_a_decode_within_a_page_leases_nothing(model: Model) -> None:
    tokens = model.extend(torch.empty(0, dtype=torch.int64), PAGE_TOKENS - 1)
    assert tokens is not None
    before = model.pools[SWA].ledger.leased_ids.tolist()

    assert model.decode(tokens) is not None

    assert model.pools[SWA].ledger.leased_ids.tolist() == before


def test_the_tail_of_a_request_leases_only_its_sliding_window(both: Model) -> None:
    length = torch.tensor([5 * PAGE_TOKENS])
    none = torch.tensor([0])

    tokens = both.allocator.alloc_extend_swa_tail(
        none, none, length, length, torch.tensor([-1]), 5 * PAGE_TOKENS, 300
    )

    assert pages_of(tokens) == both.pools[C4].ledger.leased_ids.tolist() == [1, 2, 3, 4, 5]
    assert len(both.pools[SWA].ledger.leased_ids) == 2


def test_no_tail_leases_no_sliding_window(both: Model) -> None:
    length, none = torch.tensor([PAGE_TOKENS]), torch.tensor([0])

    both.allocator.alloc_extend_swa_tail(
        none, none, length, length, torch.tensor([-1]), PAGE_TOKENS, 0
    )

    assert both.pools[C4].ledger.leased_ids.tolist() == [1]
    assert both.pools[SWA].ledger.leased_ids.tolist() == []


def test_a_sub_allocator_that_is_asked_alone_leases_too(both: Model) -> None:
    tokens = both.allocator.swa_attn_allocator.alloc(2 * PAGE_TOKENS)

    assert both.pools[SWA].ledger.leased_ids.tolist() == pages_of(tokens)
    both.allocator.swa_attn_allocator.free(tokens)
    assert both.pools[SWA].ledger.leased_ids.tolist() == []
    one = torch.tensor([PAGE_TOKENS])
    none = torch.tensor([0])
    last = both.allocator.full_attn_allocator.alloc_extend(
        none, none, one, one, torch.tensor([-1]), PAGE_TOKENS
    )
    both.allocator.full_attn_allocator.alloc_decode(one + 1, one + 1, last[-1:])
    assert both.pools[C4].ledger.leased_ids.tolist() == [1, 2]


@pytest.fixture
def nearly_next_vmm_page(both: Model) -> torch.Tensor:
    """Tokens of a request whose next page of each pool lies on a VMM page that is not mapped."""
    tokens = both.start(ROWS_OF_VMM_PAGE_0 - 1)
    # The next C4 page that is not on VMM page 0 is id 56.
    while int(both.allocator.full_attn_allocator.free_pages[0]) < 56:
        both.allocator.full_attn_allocator.alloc(PAGE_TOKENS)
    return tokens


@pytest.mark.parametrize("failing", range(1, LAYERS + 2 + 1))
@pytest.mark.parametrize("step", ["extend", "decode"])
def test_a_miss_in_any_layer_of_any_pool_leaves_everything_as_it_was(
    both: Model, nearly_next_vmm_page: torch.Tensor, failing: int, step: str
) -> None:
    tokens = nearly_next_vmm_page
    before, bytes_before = both.picture(), vmm.state().created_bytes

    def act() -> torch.Tensor | None:
        return (
            both.decode(tokens)
            if step == "decode"
            else both.extend(tokens, tokens.numel() + PAGE_TOKENS)
        )

    with vmm.fail_at(Call.CREATE, failing):
        assert act() is None
    assert both.picture() == before
    assert vmm.state().created_bytes == bytes_before

    assert act() is not None
    assert both.picture() != before


def test_a_decode_that_one_side_cannot_serve_returns_the_other_side(both: Model) -> None:
    one, other = both.start(SWA_PAGES - 2), both.start(1)
    both.allocator.swa_attn_allocator.alloc(PAGE_TOKENS)
    assert both.allocator.swa_available_size() == 0
    assert both.allocator.full_available_size() > 2 * PAGE_TOKENS
    before = both.picture()

    assert both.decode(one, other) is None

    assert both.picture() == before


def test_no_kernel_runs_for_a_decode_beyond_the_free_list(
    both: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.mem_cache.allocator import paged

    one = both.start(SWA_PAGES)
    monkeypatch.delattr(paged, "alloc_decode_kernel")

    assert both.decode(one) is None


def test_a_miss_during_an_extension_keeps_staged_pages_staged(both: Model) -> None:
    """Where SGLang sorts freed pages in, a miss takes that back as well."""
    for side in (both.allocator.full_attn_allocator, both.allocator.swa_attn_allocator):
        side.need_sort = True
    tokens = both.start(SWA_PAGES)
    both.allocator.free_segment(tokens[20 * PAGE_TOKENS :], start_pos=0)
    swa = both.allocator.swa_attn_allocator
    staged = [each.tolist() for each in swa.staged_pages]
    assert staged
    before = both.picture()

    with vmm.fail_at(Call.CREATE):
        assert both.extend(tokens[: 20 * PAGE_TOKENS], SWA_PAGES * PAGE_TOKENS) is None

    assert [each.tolist() for each in swa.staged_pages] == staged
    assert swa.free_pages.tolist() == []
    assert both.picture() == before
    assert both.extend(tokens[: 20 * PAGE_TOKENS], SWA_PAGES * PAGE_TOKENS) is not None


def test_an_error_in_sglang_gives_the_leases_back(
    both: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = both.picture()

    def fail(*args: object) -> None:
        raise RuntimeError("no such request")

    monkeypatch.setattr(both.allocator, "set_full_to_swa_mapping", fail)

    with pytest.raises(RuntimeError, match="no such request"):
        both.start(3)

    assert both.picture() == before


def test_sglang_taking_other_pages_than_were_leased_is_noticed(
    both: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = both.allocator.set_full_to_swa_mapping

    def take_one_more(full: torch.Tensor, swa: torch.Tensor) -> None:
        side = both.allocator.swa_attn_allocator
        side.free_pages = side.free_pages[1:]
        original(full, swa)

    monkeypatch.setattr(both.allocator, "set_full_to_swa_mapping", take_one_more)

    with pytest.raises(PoolFailedError, match="took 4 swa pages where 3 were leased"):
        both.start(3)


def test_a_retired_window_goes_and_the_compressed_history_stays(both: Model) -> None:
    tokens = both.start(SWA_PAGES)
    for layer in both.pool.c4_kv_pool.kv_buffer:
        layer[1 : SWA_PAGES + 1] = 7
    history = [layer.clone() for layer in both.pool.c4_kv_pool.kv_buffer]

    both.allocator.free_swa_segment(tokens, start_pos=0)

    assert mapped(both, SWA) == both.pools[SWA].geometry.floor_bytes
    assert both.pools[C4].ledger.leased_ids.tolist() == pages_of(tokens)
    for layer, kept in zip(both.pool.c4_kv_pool.kv_buffer, history, strict=True):
        assert torch.equal(layer[: SWA_PAGES + 1], kept[: SWA_PAGES + 1])

    both.allocator.free_full_segment(tokens, start_pos=0)
    assert both.pools[C4].ledger.leased_ids.tolist() == []


@pytest.mark.parametrize("free", FREES.values(), ids=FREES)
@pytest.mark.parametrize("grouped", [False, True], ids=["at once", "in a group"])
def test_every_way_to_free_gives_leases_and_memory_back(
    both: Model, free: Free, grouped: bool
) -> None:
    check_free_gives_back(both, SWA_PAGES, free, grouped=grouped)


def test_freeing_twice_is_refused_before_sglangs_free_list_is_damaged(both: Model) -> None:
    tokens = both.start(2)
    both.allocator.free(tokens)
    before = both.picture()

    with pytest.raises(LeaseError, match="not leased"):
        both.allocator.full_attn_allocator.free(tokens)

    assert both.picture() == before


@pytest.mark.parametrize("grouped", [False, True], ids=["outside", "inside a group"])
def test_a_clear_ends_every_lease_and_starts_ids_at_1(both: Model, grouped: bool) -> None:
    before = both.picture().pools
    tokens = both.start(SWA_PAGES)
    if grouped:
        both.allocator.free_group_begin()
        both.allocator.free(tokens)

    both.allocator.clear()

    assert both.picture().pools == before
    assert both.picture().full == list(range(1, FULL_PAGES + 1))
    assert both.picture().swa == list(range(1, SWA_PAGES + 1))
    row_0 = both.pool.swa_kv_pool.kv_buffer[0][0]
    row_0[:] = 5
    assert both.pool.swa_kv_pool.kv_buffer[0][SWA_PAGES].sum() == 0, "row 0 has its own memory"


def test_a_page_that_is_lost_is_never_handed_out_again(model: Model) -> None:
    tokens = model.start(ROWS_OF_VMM_PAGE_0 - 1)
    capacity = model.allocator.swa_available_size()

    with (
        vmm.fail_at(Call.CREATE, LAYERS),
        vmm.fail_at(Call.UNMAP, LAYERS + 1),
    ):
        assert model.decode(tokens) is None

    lost = model.pools.lost_ids(IdSpace.SWA).tolist()
    assert len(lost) > 10
    assert model.allocator.swa_available_size() == capacity - len(lost) * PAGE_TOKENS
    nxt = model.decode(tokens)
    assert nxt is not None
    assert set(swa_pages_of(model, nxt)).isdisjoint(lost)
    model.allocator.clear()
    assert set(model.picture().swa) == set(range(1, SWA_PAGES + 1)) - set(lost)


def test_a_limit_shows_in_what_is_available_and_is_applied_by_later_frees(model: Model) -> None:
    one, other = model.start(20), model.start(18)
    pool = model.pools[SWA]

    state = pool.set_memory_limit(pool.geometry.bundle_bytes, revision=1)
    assert state.status is LimitStatus.DEFERRED
    # The two ids that are left lie on the last mapped VMM page.
    assert model.allocator.swa_available_size() == 2 * PAGE_TOKENS
    model.allocator.free_segment(other, start_pos=0)
    assert status_of(pool) is LimitStatus.DEFERRED
    model.allocator.free_segment(one, start_pos=0)
    assert status_of(pool) is LimitStatus.APPLIED

    available = model.allocator.swa_available_size() // PAGE_TOKENS
    assert 0 < available <= ROWS_OF_VMM_PAGE_0 - 1
    before = model.picture()
    assert model.extend(torch.empty(0, dtype=torch.int64), 30 * PAGE_TOKENS) is None
    assert model.picture() == before
    assert model.start(available).numel() == available * PAGE_TOKENS
    pool.set_memory_limit(pool.geometry.virtual_bytes, revision=2)
    assert model.allocator.swa_available_size() == (SWA_PAGES - available) * PAGE_TOKENS


def test_sglang_cannot_resize_a_pool_beyond_its_memory(model: Model) -> None:
    class Config:
        full_max_total_num_tokens = FULL_PAGES * PAGE_TOKENS
        swa_max_total_num_tokens = (SWA_PAGES + 1) * PAGE_TOKENS

    with pytest.raises(SetupError, match="at most 40"):
        model.allocator.resize(Config())


def test_a_pool_that_cannot_be_made_stops_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcached import vmm_ops

    monkeypatch.setattr(vmm_ops, "create_kv_tensors", lambda **sizes: [])

    with pytest.raises(PoolFailedError, match="pool swa: kvcached made"):
        make_pool()
