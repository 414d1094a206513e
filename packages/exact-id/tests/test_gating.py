# SPDX-License-Identifier: Apache-2.0
import logging
from dataclasses import replace

import pytest

from kvstrata.exact_id.gating import Circumstances, is_enabled, native_reason
from kvstrata.exact_id.ownership import (
    ATTENTION_STATES,
    C4,
    C128,
    INDEXER,
    INDEXER_STATES,
    POOLS,
    SWA,
    Claim,
    decide,
)
from kvstrata.exact_id.transaction import IdSpace

SUPPORTED = Circumstances(
    tp_size=1, pp_size=1, kvcached_version="0.1.6", contiguous_layout=False, device_type="cuda"
)
LAYERS = dict.fromkeys(POOLS, 2)
ALL_CLAIMED = {pool: Claim(pool, IdSpace.FULL, "the test") for pool in POOLS}


@pytest.mark.parametrize("value", [None, "", "0", "false", "FALSE"])
def test_the_switch_is_off(value: str | None, caplog: pytest.LogCaptureFixture) -> None:
    assert not is_enabled({} if value is None else {"ENABLE_KVCACHED": value})
    assert caplog.messages == []


@pytest.mark.parametrize("value", ["1", "true", "TRUE"])
def test_the_switch_is_on(value: str) -> None:
    assert is_enabled({"ENABLE_KVCACHED": value})


@pytest.mark.parametrize("value", ["yes", "2", "on"])
def test_another_value_is_off_and_said_to_be(value: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not is_enabled({"ENABLE_KVCACHED": value})

    assert [f"ENABLE_KVCACHED is {value!r}" in message for message in caplog.messages] == [True]


def test_one_rank_on_a_gpu_with_separate_layers_may_have_managed_pools() -> None:
    assert native_reason(SUPPORTED) is None


NATIVE: dict[str, tuple[dict[str, object], str]] = {
    "TP 2": ({"tp_size": 2}, "the TP size is 2"),
    "TP unknown": ({"tp_size": None}, "the TP size is not known"),
    "PP 2": ({"pp_size": 2}, "the PP size is 2"),
    "PP unknown": ({"pp_size": None}, "the PP size is not known"),
    "no kvcached": ({"kvcached_version": None}, "kvcached is not installed"),
    "another kvcached": ({"kvcached_version": "0.1.7"}, "kvcached is 0.1.7; supported: 0.1.6"),
    "layers mixed": ({"contiguous_layout": True}, "KVCACHED_CONTIGUOUS_LAYOUT=false"),
    "layout unknown": ({"contiguous_layout": None}, "KVCACHED_CONTIGUOUS_LAYOUT=false"),
    "another device": ({"device_type": "npu"}, "the device npu"),
    "draft model": ({"draft": True}, "shares the ids of the target"),
    "unified KV": ({"unified_kv": True}, "unified KV"),
    "memory saver": ({"memory_saver": True}, "--enable-memory-saver"),
    "HiCache": ({"hierarchical_cache": True}, "HiCache"),
    "cache linker": ({"external_linker": True}, "a cache linker"),
    "PD": ({"disaggregation": True}, "PD disaggregation"),
}


@pytest.mark.parametrize(("changes", "reason"), NATIVE.values(), ids=NATIVE)
def test_every_pool_is_native_and_the_reason_is_given(
    changes: dict[str, object], reason: str
) -> None:
    seen = replace(SUPPORTED, **changes)  # type: ignore[arg-type]

    owners = decide(seen, LAYERS, ALL_CLAIMED)

    assert [owner.pool for owner in owners] == list(POOLS)
    for owner in owners:
        assert not owner.is_managed
        assert reason in owner.why


def managed(seen: Circumstances, layers: dict[str, int] = LAYERS) -> set[str]:
    return {owner.pool for owner in decide(seen, layers, ALL_CLAIMED) if owner.is_managed}


def test_pools_that_follow_page_ids_can_be_managed_and_the_others_are_native() -> None:
    assert managed(SUPPORTED) == {SWA, C4, INDEXER}
    assert {C128, ATTENTION_STATES, INDEXER_STATES}.isdisjoint(managed(SUPPORTED))


def test_a_pool_is_managed_only_where_a_slice_claims_it() -> None:
    owners = {owner.pool: owner for owner in decide(SUPPORTED, LAYERS, {SWA: ALL_CLAIMED[SWA]})}

    assert owners[SWA].is_managed
    assert owners[SWA].why == "by the test"
    assert not owners[C4].is_managed
    assert owners[C4].why == "no installed slice manages it"


def test_hisparse_keeps_c4_native_and_swa_managed() -> None:
    assert managed(replace(SUPPORTED, hisparse=True)) == {SWA, INDEXER}


def test_split_fp4_keeps_the_indexer_native() -> None:
    assert managed(replace(SUPPORTED, aiter_fp4=True)) == {SWA, C4}


def test_a_pool_without_layers_is_not_selected() -> None:
    assert managed(SUPPORTED, {**LAYERS, C4: 0, INDEXER: 0}) == {SWA}


def test_ownership_can_be_printed() -> None:
    (first, *_) = decide(SUPPORTED, LAYERS, ALL_CLAIMED)

    assert first.as_dict() == {"pool": "swa", "is_managed": True, "why": "by the test"}
