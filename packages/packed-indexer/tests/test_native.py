# SPDX-License-Identifier: Apache-2.0
"""Where index keys stay SGLang's own, with real pools, and what is accounted for them."""

from collections.abc import Iterator

import pytest
import torch

from kvstrata.exact_id.accounting import RESERVATIONS, mapped_bytes, native_bytes
from kvstrata.exact_id.discovery import managed_pools_behind
from kvstrata.exact_id.errors import SetupError
from kvstrata.exact_id.ownership import C4, C128, INDEXER, SWA
from kvstrata.packed_indexer import CLAIM
from kvstrata_host import vmm
from kvstrata_host.leases.model import (
    FULL_PAGES,
    PAGE_TOKENS,
    Model,
    construction,
    make_allocator,
    make_pool,
    unify,
)
from kvstrata_host.leases.owners import make_watched_pool, managed, reason
from kvstrata_host.leases.switch import OFF, ON, check_switch_decides

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("switched_on", "no_reservations"),
]

ROWS = FULL_PAGES + 1


@pytest.fixture
def fp4() -> Iterator[None]:
    from sglang.srt.runtime_context import get_context

    with get_context().override_server_args(enable_deepseek_v4_fp4_indexer=True):
        yield


def test_all_pools_that_follow_page_ids_are_managed_and_the_others_say_why_not() -> None:
    pool = make_pool()

    assert managed(pool) == [SWA, C4, INDEXER]
    assert reason(pool, INDEXER) == f"by {CLAIM.by}"
    assert "small" in reason(pool, C128)
    for states in ("attention-states", "indexer-states"):
        assert "not page ids" in reason(pool, states)
    assert set(RESERVATIONS.on("cpu")) == {C128, "attention-states", "indexer-states"}


@pytest.mark.parametrize("value", [*OFF, *ON])
def test_the_switch_decides_also_for_a_pool_that_is_made_directly(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = check_switch_decides(monkeypatch, value, [SWA, C4, INDEXER])

    assert (type(pool.c4_indexer_kv_pool).__name__ == "BackedIndexerPool") is (value in ON)


def test_a_pool_of_index_keys_without_a_model_is_sglangs_own() -> None:
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4IndexerPool

    before = vmm.state().calls

    pool = DeepSeekV4IndexerPool(
        1024, 64, torch.float8_e4m3fn, 128, 2, "cpu", enable_memory_saver=False
    )

    assert vmm.state().calls == before
    assert [each.shape for each in pool.index_k_with_scale_buffer] == [(17, 8_448)] * 2


@pytest.mark.usefixtures("fp4")
def test_aiters_split_fp4_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.mem_cache import deepseek_v4_memory_pool as sglang

    monkeypatch.setattr(sglang, "_is_hip", True)
    monkeypatch.setattr(construction, "is_hip", lambda: True)

    pool = make_pool()

    assert pool.c4_indexer_kv_pool.index_k_with_scale_buffer is None
    assert "AITER" in reason(pool, INDEXER)
    # 4,096 bytes of payload and 256 of scales.
    assert RESERVATIONS.on("cpu")[INDEXER] == 2 * ROWS * 4_352
    assert managed(pool) == [SWA, C4]


def test_hisparse_keeps_c4_and_its_index_keys_follow_the_full_ids() -> None:
    from sglang.srt.mem_cache.allocator.hisparse import DeepSeekV4HiSparseTokenToKVPoolAllocator

    pool = make_pool(enable_hisparse=True)
    wrapper = DeepSeekV4HiSparseTokenToKVPoolAllocator(make_allocator(pool))
    pools = managed_pools_behind(wrapper)
    assert pools is not None

    length, none = torch.tensor([3 * PAGE_TOKENS]), torch.tensor([0])
    tokens = wrapper.alloc_extend(none, none, length, length, torch.tensor([-1]), 3 * PAGE_TOKENS)
    assert pools[INDEXER].ledger.leased_ids.tolist() == [1, 2, 3]
    with pytest.raises(SetupError, match="of indexer"):
        pool.get_contiguous_buf_infos()
    wrapper.free(tokens)

    assert pools[INDEXER].ledger.leased_ids.size == 0
    assert managed(pool) == [SWA, INDEXER]


def test_the_unified_layout_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    unify(monkeypatch)

    pool, touched = make_watched_pool()

    assert not touched
    assert managed(pool) == []
    assert type(pool.c4_indexer_kv_pool).__name__ == "DeepSeekV4IndexerPool"


@pytest.mark.parametrize("ratios", [[0], [0, 128]], ids=["a draft model", "no C4 layers"])
def test_a_model_without_index_keys_has_none_to_wait_for(ratios: list[int]) -> None:
    pool = make_pool(compression_ratios=ratios)

    assert pool.c4_indexer_kv_pool.index_k_with_scale_buffer == []
    assert managed(pool) == ([SWA] if 128 in ratios else [])


def test_a_managed_pool_does_not_hand_out_its_page_rows() -> None:
    model = Model()

    with pytest.raises(SetupError, match=r"buffers of indexer\. .*ENABLE_KVCACHED=0"):
        model.pool.c4_indexer_kv_pool.contiguous_page_row_buffers()
    with pytest.raises(SetupError, match=r"buffers of c4, indexer\. .*ENABLE_KVCACHED=0"):
        model.pool.get_contiguous_buf_infos()

    model.pools.close()


@pytest.mark.usefixtures("fp4")
def test_fp4_is_accounted_at_what_it_stores_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_KVCACHED", "0")
    native = native_bytes(make_pool())
    assert native[INDEXER] == 2 * ROWS * 4_352
    monkeypatch.setenv("ENABLE_KVCACHED", "1")
    RESERVATIONS.report("cpu", INDEXER, native[INDEXER])

    model = Model()

    assert model.pools[INDEXER].geometry.native_bytes == native[INDEXER]
    assert native_bytes(model.pool)[INDEXER] == 0
    assert INDEXER not in RESERVATIONS.on("cpu"), "a stale entry is removed"
    model.start(2)
    # Managed bytes are those that are mapped: a VMM page for each of two layers.
    assert mapped_bytes(model.pool)[INDEXER] == 2 * (2 << 20)
    assert RESERVATIONS.total_bytes("cpu") == sum(
        size for name, size in native.items() if name not in (SWA, C4, INDEXER)
    )
    model.pools.close()
