# SPDX-License-Identifier: Apache-2.0
"""Who owns the pools of real DeepSeek-V4 models, and what is accounted for them."""

import logging

import pytest
import torch

from kvstrata.exact_id.accounting import RESERVATIONS, Reservations, mapped_bytes, native_bytes
from kvstrata.exact_id.discovery import (
    managed_pools_behind,
    managed_pools_of,
    owners_of,
    swa_allocator_of,
)
from kvstrata.exact_id.errors import SetupError
from kvstrata.exact_id.ownership import POOLS, SWA
from kvstrata_host.leases.model import (
    FULL_PAGES,
    PAGE_TOKENS,
    RATIOS,
    SWA_PAGES,
    Model,
    construction,
    make_allocator,
    make_pool,
)
from kvstrata_host.leases.owners import make_watched_pool
from kvstrata_host.leases.switch import OFF, ON, turn

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("switched_on", "no_reservations"),
]


@pytest.mark.parametrize("value", OFF)
def test_with_the_switch_off_a_pool_that_is_made_directly_is_native(
    value: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turn(monkeypatch, value)
    # Nothing else is looked at.
    monkeypatch.setattr(construction, "observe", lambda given: pytest.fail("looked"))

    with caplog.at_level(logging.INFO, logger="kvstrata.exact_id"):
        pool, touched = make_watched_pool()

    assert not touched
    assert managed_pools_of(pool) is None
    assert caplog.messages == []
    assert owners_of(pool) == ()
    assert type(pool.swa_kv_pool).__name__ == "DeepSeekV4SingleKVPool"


@pytest.mark.parametrize("value", ON)
def test_with_the_switch_on_swa_is_managed(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turn(monkeypatch, value)

    model = Model()

    assert [pool.name for pool in model.pools] == [SWA]
    assert {owner.pool: owner.is_managed for owner in owners_of(model.pool)} == {
        name: name == SWA for name in POOLS
    }
    model.pools.close()


TOPOLOGIES = {
    "TP 2": ({"tp_size": 2}, "the TP size is 2"),
    "PP 2": ({"pp_size": 2}, "the PP size is 2"),
}


@pytest.mark.parametrize(("topology", "reason"), TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_more_than_one_rank_keeps_native_pools_and_says_so_once(
    topology: dict[str, int], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang.srt.runtime_context import get_parallel

    with get_parallel().override(**topology), caplog.at_level(logging.INFO, "kvstrata.exact_id"):
        pool, touched = make_watched_pool()

    assert not touched
    assert managed_pools_of(pool) is None
    assert [reason in message for message in caplog.messages] == [True]
    assert sum(RESERVATIONS.on("cpu").values()) == sum(native_bytes(pool).values()) > 0
    assert RESERVATIONS.on("cpu")[SWA] == (SWA_PAGES + 1) * 149_760 * len(RATIOS)


def test_an_unpublished_topology_keeps_native_pools(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unpublished:
        @property
        def tp_size(self) -> int:
            raise ValueError("config namespace 'parallel' not published")

        pp_size = tp_size

    monkeypatch.setattr(construction, "get_parallel", Unpublished)

    with caplog.at_level(logging.INFO, logger="kvstrata.exact_id"):
        pool, touched = make_watched_pool()

    assert not touched
    assert managed_pools_of(pool) is None
    assert ["the TP size is not known" in message for message in caplog.messages] == [True]


def test_a_real_configuration_without_publication_is_an_unknown_topology() -> None:
    from sglang.srt.runtime_context import ParallelContext

    assert construction._published(lambda: ParallelContext().tp_size) is None


SETTINGS = {
    "HiCache": ("enable_hierarchical_cache", True, "HiCache"),
    "cache linker": ("enable_unified_cache_external_linker", True, "a cache linker"),
    "PD": ("disaggregation_mode", "decode", "PD disaggregation"),
}


@pytest.mark.parametrize(("name", "value", "reason"), SETTINGS.values(), ids=SETTINGS)
def test_what_registers_whole_buffers_keeps_native_pools(
    name: str,
    value: object,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from sglang.srt.runtime_context import get_disagg, get_memory

    bag = get_memory() if name in get_memory()._fields else get_disagg()

    class Changed:
        def __getattr__(self, attribute: str) -> object:
            return value if attribute == name else getattr(bag, attribute)

    getter = "get_memory" if bag is get_memory() else "get_disagg"
    monkeypatch.setattr(construction, getter, Changed)

    with caplog.at_level(logging.INFO, logger="kvstrata.exact_id"):
        pool, touched = make_watched_pool()

    assert not touched
    assert managed_pools_of(pool) is None
    assert [reason in message for message in caplog.messages] == [True]


def test_the_layout_that_mixes_layers_keeps_native_pools(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import kvcached.utils

    monkeypatch.setattr(kvcached.utils, "CONTIGUOUS_LAYOUT", True)

    with caplog.at_level(logging.WARNING, logger="kvstrata.exact_id"):
        pool, touched = make_watched_pool()

    assert not touched
    assert managed_pools_of(pool) is None
    assert ["KVCACHED_CONTIGUOUS_LAYOUT=false" in message for message in caplog.messages] == [True]


def test_the_memory_saver_keeps_native_pools(caplog: pytest.LogCaptureFixture) -> None:
    given = {"enable_memory_saver": True, "compression_ratios": [0, 4], "device": "cpu"}

    seen = construction.observe({**given, "enable_hisparse": False})

    assert seen.memory_saver


def test_a_draft_pool_without_c4_layers_is_native_and_takes_no_time() -> None:
    pool, touched = make_watched_pool(compression_ratios=[0])

    assert not touched
    assert managed_pools_of(pool) is None
    assert set(RESERVATIONS.on("cpu")) == {"draft-swa"}


def test_a_native_model_gets_sglangs_own_page_allocators(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.mem_cache.allocator import swa
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.runtime_context import get_parallel

    class Elastic:
        """What kvcached's autopatch puts into SGLang's module."""

        def __init__(self, *args: object) -> None:
            raise ValueError("ElasticPagedTokenToKVPoolAllocator requires elastic MHA pool")

    monkeypatch.setattr(swa, "PagedTokenToKVPoolAllocator", Elastic)
    with get_parallel().override(tp_size=2):
        allocator = make_allocator(make_pool())

    assert type(allocator.full_attn_allocator) is PagedTokenToKVPoolAllocator
    assert type(allocator.swa_attn_allocator) is PagedTokenToKVPoolAllocator
    assert swa.PagedTokenToKVPoolAllocator is Elastic, "other models keep kvcached's"


def test_the_pools_are_found_behind_the_wrapper_of_hisparse() -> None:
    from sglang.srt.mem_cache.allocator.hisparse import DeepSeekV4HiSparseTokenToKVPoolAllocator

    pool = make_pool(enable_hisparse=True)
    inner = make_allocator(pool)
    wrapper = DeepSeekV4HiSparseTokenToKVPoolAllocator(inner)

    found = managed_pools_behind(wrapper)
    assert swa_allocator_of(wrapper) is inner
    assert found is managed_pools_of(pool) is managed_pools_behind(inner)
    assert found is not None
    assert [each.name for each in found] == [SWA]
    length, none = torch.tensor([3 * PAGE_TOKENS]), torch.tensor([0])
    tokens = wrapper.alloc_extend(none, none, length, length, torch.tensor([-1]), 3 * PAGE_TOKENS)
    assert len(found[SWA].ledger.leased_ids) == 3
    wrapper.free_swa(tokens)
    assert len(found[SWA].ledger.leased_ids) == 0
    found.close()


def test_pd_transfer_is_refused_the_windows_and_gets_compressed_pages() -> None:
    pool = make_pool()

    with pytest.raises(SetupError, match=r"PD transfer, .* of swa\..*ENABLE_KVCACHED=0"):
        pool.get_state_buf_infos()
    pointers, _, _ = pool.get_contiguous_buf_infos()

    assert pointers[0] == pool.c4_kv_pool.kv_buffer[0].data_ptr()


def test_hicache_and_a_cache_linker_are_refused_a_model_with_a_managed_pool() -> None:
    from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler, linker_pool_assembler

    pool = make_pool()

    with pytest.raises(SetupError, match=r"HiCache, .* of swa"):
        hybrid_pool_assembler.build_deepseek_v4_hicache_stack(params=None, kvcache=pool)
    with pytest.raises(SetupError, match=r"a cache linker, .* of swa"):
        linker_pool_assembler._build_deepseek_v4_device_pool_group(pool, PAGE_TOKENS)


def test_another_allocator_has_no_pools() -> None:
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

    other = PagedTokenToKVPoolAllocator(1024, 256, torch.uint8, "cpu", None, need_sort=False)

    assert swa_allocator_of(other) is None
    assert managed_pools_behind(other) is None


def test_a_managed_pool_reserves_nothing_and_the_others_exactly_their_tensors() -> None:
    model = Model()
    compressed = FULL_PAGES + 1

    assert native_bytes(model.pool) == {
        "unified": 0,
        "swa": 0,
        "c4": 2 * compressed * 37_440,
        "c128": compressed * 1_728,
        "indexer": 2 * compressed * 8_448,
        "attention-states": sum(
            each.kv_score_buffer.kv_score.nbytes
            for each in model.pool.compress_state_pools
            if each is not None
        ),
        "indexer-states": sum(
            each.kv_score_buffer.kv_score.nbytes
            for each in model.pool.indexer_compress_state_pools
            if each is not None
        ),
    }
    assert "swa" not in RESERVATIONS.on("cpu")
    model.start(SWA_PAGES)
    assert mapped_bytes(model.pool) == {"swa": 3 * len(RATIOS) * (2 << 20)}
    model.pools.close()


def test_a_pool_that_becomes_managed_leaves_no_stale_reservation() -> None:
    from sglang.srt.runtime_context import get_parallel

    with get_parallel().override(tp_size=2):
        make_pool()
    assert RESERVATIONS.on("cpu")["swa"] > 0

    model = Model()

    assert "swa" not in RESERVATIONS.on("cpu")
    model.pools.close()


def test_reservations_are_by_device_and_0_removes_one() -> None:
    reservations = Reservations()
    reservations.report("cuda:0", "c4", 10)
    reservations.report("cuda:0", "indexer", 5)
    reservations.report("cuda:1", "c4", 7)
    reservations.report("cuda:0", "c4", 12)

    assert reservations.on("cuda:0") == {"indexer": 5, "c4": 12}
    assert reservations.total_bytes("cuda:0") == 17
    reservations.report("cuda:0", "c4", 0)
    assert reservations.on("cuda:0") == {"indexer": 5}
    assert reservations.on("cuda:1") == {"c4": 7}
    reservations.clear()
    assert reservations.total_bytes("cuda:1") == 0


def test_a_negative_reservation_is_an_error_and_changes_nothing() -> None:
    reservations = Reservations()
    reservations.report("cuda:0", "c4", 10)

    with pytest.raises(ValueError, match="pool c4 on cuda:0 has -1 bytes"):
        reservations.report("cuda:0", "c4", -1)

    assert reservations.on("cuda:0") == {"c4": 10}
