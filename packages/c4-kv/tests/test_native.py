# SPDX-License-Identifier: Apache-2.0
"""Where C4 KV stays SGLang's own, with real pools."""

import pytest

from kvstrata.c4_kv import CLAIM
from kvstrata.exact_id.accounting import RESERVATIONS, native_bytes
from kvstrata.exact_id.discovery import managed_pools_behind, managed_pools_of, owners_of
from kvstrata.exact_id.ownership import C4, C128, INDEXER, SWA
from kvstrata_host.leases.model import FULL_PAGES, Model, make_allocator, make_pool, unify
from kvstrata_host.leases.owners import make_watched_pool, managed, reason
from kvstrata_host.leases.switch import OFF, ON, check_switch_decides

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("switched_on", "no_reservations"),
]


def test_c4_is_managed_beside_the_window_and_everything_else_says_why_not() -> None:
    pool = make_pool()

    assert managed(pool) == [SWA, C4]
    assert reason(pool, C4) == f"by {CLAIM.by}"
    assert {owner.pool for owner in owners_of(pool) if not owner.is_managed} == {
        C128,
        INDEXER,
        "attention-states",
        "indexer-states",
    }
    assert reason(pool, INDEXER) == "no installed slice manages it"
    assert "small" in reason(pool, C128)
    assert type(pool.c128_kv_pool).__name__ == "DeepSeekV4SingleKVPool"
    assert type(pool.c4_indexer_kv_pool).__name__ == "DeepSeekV4IndexerPool"


@pytest.mark.parametrize("value", [*OFF, *ON])
def test_the_switch_decides_also_for_a_pool_that_is_made_directly(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_switch_decides(monkeypatch, value, [SWA, C4])


def test_hisparse_keeps_c4_which_has_device_ids_of_its_own() -> None:
    from sglang.srt.mem_cache.allocator.hisparse import DeepSeekV4HiSparseTokenToKVPoolAllocator

    pool = make_pool(enable_hisparse=True)
    wrapper = DeepSeekV4HiSparseTokenToKVPoolAllocator(make_allocator(pool))

    assert type(pool.c4_kv_pool).__name__ == "HiSparseC4DevicePool"
    assert managed_pools_behind(wrapper) is managed_pools_of(pool)
    assert RESERVATIONS.on("cpu")[C4] == 2 * (FULL_PAGES + 1) * 37_440
    assert "device ids" in reason(pool, C4)
    assert managed(pool) == [SWA]


@pytest.mark.parametrize("ratios", [[0], [0, 0]], ids=["NextN", "several stages"])
def test_a_draft_model_shares_the_ids_of_its_target_and_keeps_its_storage(
    ratios: list[int],
) -> None:
    pool, touched = make_watched_pool(compression_ratios=ratios)

    assert not touched
    assert managed(pool) == []
    assert "draft" in reason(pool, C4)


def test_a_model_without_c4_layers_has_nothing_to_wait_for() -> None:
    pool = make_pool(compression_ratios=[0, 128])

    assert reason(pool, C4) == "it has no layers"
    assert managed(pool) == [SWA]


def test_the_unified_layout_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    unify(monkeypatch)

    pool, touched = make_watched_pool()

    assert not touched
    assert managed(pool) == []
    assert pool.c4_kv_pool is None
    assert RESERVATIONS.on("cpu")["unified"] == native_bytes(pool)["unified"] > 0


def test_a_managed_pool_reserves_nothing_and_leaves_no_stale_entry() -> None:
    from sglang.srt.runtime_context import get_parallel

    with get_parallel().override(tp_size=2):
        make_pool()
    assert RESERVATIONS.on("cpu")[C4] == 2 * (FULL_PAGES + 1) * 37_440

    model = Model()

    assert {SWA, C4}.isdisjoint(RESERVATIONS.on("cpu"))
    assert native_bytes(model.pool)[C4] == 0
    model.pools.close()
