# SPDX-License-Identifier: Apache-2.0
"""All managed pools of a model in one transaction: the window, compressed KV and index keys."""

from collections.abc import Iterator

import pytest
import torch

from kvstrata.exact_id.limits import LimitStatus
from kvstrata.exact_id.ownership import C4, INDEXER, SWA
from kvstrata.exact_id.transaction import IdSpace
from kvstrata_host import vmm
from kvstrata_host.leases.frees import FREES, Free, check_free_gives_back
from kvstrata_host.leases.model import PAGE_TOKENS, Model, make_pool, pages_of
from kvstrata_host.leases.prefix_cache import PrefixCache
from kvstrata_host.vmm import Call

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]

PAGES = 300
RATIOS = [4, 4]
LAYERS = 2
"""Of every managed pool."""
TAKEN = 247
"""So many pages, and the next one lies on two VMM pages of the index keys."""
GROWTH = 40
"""So many more need memory in all three pools."""


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model(
        make_pool(
            swa_size=PAGES * PAGE_TOKENS,
            c4_size=PAGES * 64,
            c128_size=PAGES * 2,
            compression_ratios=RATIOS,
        ),
        full_pages=PAGES,
        swa_pages=PAGES,
    )
    yield made
    made.pools.close()


def take(model: Model, page_count: int) -> torch.Tensor:
    tokens = model.without_kernels(page_count)
    assert tokens is not None
    return tokens


def rows(model: Model) -> dict[str, list[torch.Tensor]]:
    """The rows of compressed pools, layer by layer."""
    return {
        C4: model.pool.c4_kv_pool.kv_buffer,
        INDEXER: model.pool.c4_indexer_kv_pool.index_k_with_scale_buffer,
    }


def mapped(model: Model) -> dict[str, int]:
    return {pool.name: pool.mapped_bytes for pool in model.pools}


def leased(model: Model) -> dict[str, list[int]]:
    return {pool.name: pool.ledger.leased_ids.tolist() for pool in model.pools}


@pytest.fixture
def grown(model: Model) -> Model:
    """A model whose next pages need memory in every pool, as `creates` counts it."""
    take(model, TAKEN)
    return model


def creates(model: Model) -> dict[str, int]:
    """How many times memory is made for each pool as GROWTH pages are taken, in this order."""
    ids = torch.arange(TAKEN + 1, TAKEN + GROWTH + 1).numpy()
    counts = {}
    for pool in model.pools:
        pages = set(pool.geometry.vmm_pages_of(ids).tolist())
        counts[pool.name] = len(pages - set(pool.backing.mapped_pages.tolist())) * LAYERS
    return counts


def test_the_next_pages_need_memory_in_every_pool(grown: Model) -> None:
    wanted, before = creates(grown), vmm.state().calls[Call.CREATE]
    assert list(wanted) == [SWA, C4, INDEXER]
    assert min(wanted.values()) > 0

    take(grown, GROWTH)

    assert vmm.state().calls[Call.CREATE] - before == sum(wanted.values())


@pytest.mark.parametrize("name", [SWA, C4, INDEXER])
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_miss_in_any_pool_leaves_everything_as_it_was(
    grown: Model, name: str, which: str
) -> None:
    wanted = creates(grown)
    names = list(wanted)
    earlier = sum(wanted[each] for each in names[: names.index(name)])
    nth = earlier + (1 if which == "first" else wanted[name])
    before, bytes_before = grown.picture(), vmm.state().created_bytes

    with vmm.fail_at(Call.CREATE, nth):
        assert grown.without_kernels(GROWTH) is None

    assert grown.picture() == before
    assert vmm.state().created_bytes == bytes_before
    take(grown, GROWTH)
    assert grown.picture() != before


@pytest.mark.parametrize("step", ["extend", "decode"])
def test_a_miss_of_the_index_keys_returns_the_window_and_the_history_too(
    model: Model, step: str
) -> None:
    """Through SGLang's own extend and decode."""
    request = model.start(2)
    model.hand_out_next(248)
    before, bytes_before = model.picture(), vmm.state().created_bytes

    def act() -> torch.Tensor | None:
        if step == "decode":
            return model.decode(request)
        return model.extend(request, request.numel() + PAGE_TOKENS)

    # C4 maps one VMM page for page 248, and then the index keys map theirs.
    with vmm.fail_at(Call.CREATE, LAYERS + 2):
        assert act() is None

    assert (model.picture(), vmm.state().created_bytes) == (before, bytes_before)
    assert act() is not None
    assert leased(model) == {SWA: [1, 2, 3], C4: [1, 2, 248], INDEXER: [1, 2, 248]}


def test_memory_that_runs_out_after_it_was_checked_is_a_miss(grown: Model) -> None:
    before = grown.picture()
    bytes_before = vmm.state().created_bytes

    with vmm.budget(bytes_before + (sum(creates(grown).values()) - 1) * (2 << 20)):
        assert grown.without_kernels(GROWTH) is None
        assert (grown.picture(), vmm.state().created_bytes) == (before, bytes_before)

    take(grown, GROWTH)


def test_a_decode_whose_window_has_no_page_returns_the_full_page(model: Model) -> None:
    request = model.start(1)
    other = model.allocator.swa_attn_allocator.alloc((PAGES - 1) * PAGE_TOKENS)
    assert model.allocator.swa_available_size() == 0
    before = model.picture()

    assert model.decode(request) is None

    assert model.picture() == before
    model.allocator.swa_attn_allocator.free(other)
    assert model.decode(request) is not None


def test_an_index_page_whose_second_part_has_no_memory_gives_back_the_first() -> None:
    straddling = 496
    model = Model(make_pool(c4_size=500 * 64, c128_size=1000), full_pages=500)
    model.hand_out_next(straddling)
    before, bytes_before = model.picture(), vmm.state().created_bytes

    # C4 maps one VMM page and the index keys two, the first of them in both layers.
    with vmm.fail_at(Call.CREATE, LAYERS + LAYERS + 1):
        assert model.without_kernels(1) is None

    assert (model.picture(), vmm.state().created_bytes) == (before, bytes_before)
    take(model, 1)
    assert model.pools[INDEXER].backing.mapped_pages.tolist() == [0, 1, 2]
    model.pools.close()


def test_a_straddling_page_keeps_its_bytes_while_its_neighbours_go(model: Model) -> None:
    tokens = take(model, 260)
    for name, layers in rows(model).items():
        for number, layer in enumerate(layers):
            layer[247], layer[248], layer[249] = 1, 30 + number + len(name), 2

    model.allocator.free(tokens[: 247 * PAGE_TOKENS])
    model.allocator.free(tokens[248 * PAGE_TOKENS :])

    assert leased(model) == {SWA: [248], C4: [248], INDEXER: [248]}
    for name, layers in rows(model).items():
        for number, layer in enumerate(layers):
            assert layer[248].eq(30 + number + len(name)).all()
    assert model.pools[INDEXER].backing.mapped_pages.tolist() == [0, 1]
    assert model.pools[C4].backing.mapped_pages.tolist() == [0, 4]


def test_an_index_page_that_is_lost_shrinks_capacity_and_is_never_handed_out(
    grown: Model,
) -> None:
    wanted = creates(grown)
    earlier = wanted[SWA] + wanted[C4]
    capacity = grown.allocator.full_available_size()

    # The second layer of the index keys has no memory, and then the first cannot be unmapped.
    with vmm.fail_at(Call.CREATE, earlier + 2), vmm.fail_at(Call.UNMAP, earlier + 3):
        assert grown.without_kernels(GROWTH) is None

    lost = grown.pools.lost_ids(IdSpace.FULL).tolist()
    assert lost == list(range(248, PAGES + 1))
    assert grown.allocator.full_available_size() == capacity - len(lost) * PAGE_TOKENS == 0
    assert grown.pools.lost_ids(IdSpace.SWA).size == 0
    grown.allocator.clear()
    assert pages_of(take(grown, TAKEN)) == list(range(1, 248))
    assert grown.without_kernels(1) is None


def test_a_retired_window_goes_and_all_compressed_history_stays(model: Model) -> None:
    tokens = take(model, 260)
    history = {}
    for name, layers in rows(model).items():
        for layer in layers:
            layer[1:261] = torch.randint(0, 255, (260, layer.shape[1]), dtype=torch.uint8)
        history[name] = [layer[1:261].clone() for layer in layers]

    model.allocator.free_swa_segment(tokens, start_pos=0)

    assert leased(model) == {SWA: [], C4: pages_of(tokens), INDEXER: pages_of(tokens)}
    assert mapped(model)[SWA] == model.pools[SWA].geometry.floor_bytes
    for name, layers in rows(model).items():
        for layer, kept in zip(layers, history[name], strict=True):
            assert torch.equal(layer[1:261], kept)
    model.allocator.free_full_segment(tokens, start_pos=0)
    assert leased(model) == {SWA: [], C4: [], INDEXER: []}
    assert mapped(model) == {pool.name: pool.geometry.floor_bytes for pool in model.pools}


@pytest.mark.parametrize("free", FREES.values(), ids=FREES)
@pytest.mark.parametrize("grouped", [False, True], ids=["at once", "in a group"])
def test_every_way_to_free_gives_all_leases_and_memory_back(
    model: Model, free: Free, grouped: bool
) -> None:
    check_free_gives_back(model, 260, free, grouped=grouped)


@pytest.mark.parametrize("grouped", [False, True], ids=["outside", "inside a group"])
def test_a_clear_ends_every_lease_and_keeps_row_0(model: Model, grouped: bool) -> None:
    idle = model.picture().pools
    tokens = take(model, 260)
    if grouped:
        model.allocator.free_group_begin()
        model.allocator.free(tokens)

    model.allocator.clear()

    assert model.picture().pools == idle
    assert model.picture().full == model.picture().swa == list(range(1, PAGES + 1))
    for layers in rows(model).values():
        layers[0][0] = 5
        assert layers[0][PAGES].eq(0).all(), "row 0 has memory of its own"


@pytest.mark.parametrize("name", [C4, INDEXER])
def test_a_limit_below_use_is_deferred_then_applied_by_frees_then_lifted(
    model: Model, name: str
) -> None:
    pool = model.pools[name]
    start = pool.limit_state.limit_bytes
    tokens = take(model, 260)

    assert pool.set_memory_limit(pool.geometry.bundle_bytes, revision=1).status is (
        LimitStatus.DEFERRED
    )
    if name == C4:
        before = model.picture()
        assert model.without_kernels(GROWTH) is None
        assert model.picture() == before
    model.allocator.free(tokens[100 * PAGE_TOKENS :])
    assert (pool.limit_state.status is LimitStatus.APPLIED) is (name == INDEXER)
    model.allocator.free(tokens[: 100 * PAGE_TOKENS])
    assert pool.limit_state.status is LimitStatus.APPLIED
    model.allocator.clear()
    on_vmm_page_0 = (2 << 20) // pool.geometry.page_bytes - 1
    assert model.allocator.full_available_size() == on_vmm_page_0 * PAGE_TOKENS
    pool.set_memory_limit(start, revision=2)

    assert pages_of(take(model, PAGES)) == list(range(1, PAGES + 1))


def test_a_kept_prefix_holds_history_and_index_keys_until_it_is_evicted(model: Model) -> None:
    cache = PrefixCache(model)
    idle = model.picture().pools
    shared = take(model, 250)
    for layers in rows(model).values():
        for layer in layers:
            layer[pages_of(shared)] = 7
    prompt, retired = list(range(shared.numel())), 240 * PAGE_TOKENS
    model.allocator.free_swa_segment(shared[:retired], start_pos=0)
    cache.keep(prompt, shared, retired_count=retired)

    assert torch.equal(cache.find(prompt), shared)
    other = take(model, 45)
    for layers in rows(model).values():
        for layer in layers:
            layer[pages_of(other)] = 9
    model.allocator.free(other)

    kept = pages_of(shared)
    assert len(leased(model)[SWA]) == 10
    assert leased(model)[C4] == leased(model)[INDEXER] == kept
    for layers in rows(model).values():
        for layer in layers:
            assert layer[kept].eq(7).all()
    cache.evict(shared.numel())
    assert model.picture().pools == idle


def test_a_flush_gives_all_memory_back(model: Model) -> None:
    cache = PrefixCache(model)
    idle = model.picture().pools
    tokens = take(model, 250)
    cache.keep(list(range(tokens.numel())), tokens)

    cache.flush()

    assert model.picture().pools == idle
    assert pages_of(take(model, 3)) == [1, 2, 3]


def test_two_engines_of_one_process_have_segments_limits_and_memory_of_their_own(
    model: Model,
) -> None:
    from kvcached.cli.kvtop import _detect_kvcache_ipc_names

    other = Model(make_pool(compression_ratios=RATIOS))
    names = [pool.segment_name for each in (model, other) for pool in each.pools]
    assert len(set(names)) == 6
    assert set(names) <= set(_detect_kvcache_ipc_names())
    mine, theirs = take(model, 20), take(other, 20)
    assert torch.equal(mine, theirs), "the same ids of SGLang's"
    for number, each in enumerate((model, other)):
        for layers in rows(each).values():
            layers[0][20] = 5 + number

    pool = other.pools[INDEXER]
    pool.set_memory_limit(0, revision=1)
    assert model.pools[INDEXER].limit_state.revision == 0
    other.allocator.free(theirs)
    other.pools.close()

    kept = pages_of(mine)
    assert leased(model) == {SWA: kept, C4: kept, INDEXER: kept}
    for layers in rows(model).values():
        assert layers[0][20].eq(5).all()
    assert {each.segment_name for each in model.pools} <= set(_detect_kvcache_ipc_names())
    third = Model(make_pool(compression_ratios=RATIOS))
    assert [each.segment_name for each in third.pools] == names[3:], "names are used again"
    third.pools.close()


def test_one_pool_that_is_missing_keeps_all_of_them_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvcached import vmm_ops

    from kvstrata.exact_id.errors import PoolFailedError

    make, before = vmm_ops.create_kv_tensors, vmm.state().calls
    made: list[int] = []

    def create(**sizes: int) -> object:
        made.append(sizes["group_id"])
        return [] if len(made) == 3 else make(**sizes)

    monkeypatch.setattr(vmm_ops, "create_kv_tensors", create)

    with pytest.raises(PoolFailedError, match="pool indexer: kvcached made"):
        make_pool()

    assert len(made) == 3
    # kvcached's own pages of zeros for the two that were made.
    assert vmm.state().calls[Call.CREATE] - before[Call.CREATE] == 2
