# SPDX-License-Identifier: Apache-2.0
"""The plugin as SGLang loads it, in a process of its own, and as `plan` finds it."""

import importlib.util
from pathlib import Path

import pytest

from kvstrata.c4_kv import CLAIM, plugin
from kvstrata.exact_id import gating
from kvstrata.exact_id.ownership import C4, INDEXER, SWA, installed_claims
from kvstrata.seams.report import SUPPORTED, compare
from kvstrata_host.leases.plan import planned, write_config
from kvstrata_host.leases.process import run
from kvstrata_host.leases.switch import OFF, check_plugin_stays_idle, turn

DSV4 = """\
from kvstrata_host.leases import model
from kvstrata.c4_kv.plugin import SEAMS
result["hooks"] = hooks(SEAMS)
made = model.Model()
result["pools"] = [type(each).__name__ for each in (made.pool.swa_kv_pool, made.pool.c4_kv_pool)]
result["leased"] = []
if hasattr(made.allocator.full_attn_allocator, "pools"):
    tokens = made.start(2)
    result["leased"] = made.pools["c4"].ledger.leased_ids.tolist()
    made.allocator.free(tokens)
    result["left"] = made.pools["c4"].ledger.leased_ids.tolist()
"""


def test_every_hook_is_pinned_to_what_is_installed() -> None:
    rows = compare(plugin.SEAMS)

    assert [row.status for row in rows] == [SUPPORTED]


@pytest.mark.parametrize("value", OFF)
def test_with_the_switch_off_loading_claims_and_hooks_nothing(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn(monkeypatch, value)

    check_plugin_stays_idle(monkeypatch, plugin)


@pytest.mark.parametrize("found", [None, "0.1.5"])
def test_without_the_supported_kvcached_nothing_is_hooked_or_claimed(
    found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn(monkeypatch, "1")
    monkeypatch.setattr(gating, "kvcached_version", lambda: found)

    check_plugin_stays_idle(monkeypatch, plugin)


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_deepseek_v4_process_has_managed_c4_beside_the_autopatch() -> None:
    result = run(DSV4, ENABLE_KVCACHED="1", KVCACHED_CONTIGUOUS_LAYOUT="false")

    assert result["hooks"] == 1
    assert result["kvcached"] == "ElasticPagedTokenToKVPoolAllocator"
    assert result["pools"] == ["BackedDeepSeekV4SingleKVPool"] * 2
    assert (result["leased"], result["left"]) == ([1, 2], [])


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_process_with_the_switch_off_has_no_hook_and_sglangs_pools() -> None:
    result = run(DSV4, ENABLE_KVCACHED="false")

    assert result["hooks"] == 0
    assert result["pools"] == ["DeepSeekV4SingleKVPool"] * 2


# What plan says of C4 for these server arguments.
PLANS: dict[str, tuple[tuple[str, ...], bool, str]] = {
    "as usual": ((), True, CLAIM.by),
    "uniform FP8": (("--dsv4-attn-backend", "trtllm"), True, CLAIM.by),
    "HiSparse": (("--enable-hisparse",), False, "HiSparse"),
    "TP 2": (("--tp", "2"), False, "TP size is 2"),
    "HiCache": (("--enable-hierarchical-cache",), False, "HiCache"),
    "PD": (("--disaggregation-mode", "prefill"), False, "PD disaggregation"),
}


@pytest.mark.parametrize(("arguments", "is_managed", "why"), PLANS.values(), ids=PLANS)
def test_the_plan_shows_c4_because_the_slice_is_installed(
    arguments: tuple[str, ...],
    is_managed: bool,
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_config(tmp_path, [0, 4, 128, 4])

    c4 = planned(capsys, config, "--max-total-tokens", "65536", *arguments)[C4]

    assert c4["is_managed"] is is_managed
    assert why in c4["why"]
    size = 32_768 if "trtllm" in arguments else 37_440
    assert c4["native_bytes"] == 257 * size * 2
    # Row 0 of both layers is all that has to be there.
    assert c4["least_bytes"] == (2 * (2 << 20) if is_managed else c4["native_bytes"])


def test_the_slice_claims_c4_and_no_other_pool() -> None:
    claims = installed_claims()

    assert {SWA, C4} <= claims.keys()
    assert claims[C4] == CLAIM
    is_there = importlib.util.find_spec("kvstrata.packed_indexer") is not None
    assert (INDEXER in claims) is is_there
