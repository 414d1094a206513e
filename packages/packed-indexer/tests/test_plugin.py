# SPDX-License-Identifier: Apache-2.0
"""The plugin as SGLang loads it, in a process of its own, and as `plan` finds it."""

from pathlib import Path

import pytest

from kvstrata.exact_id import gating
from kvstrata.exact_id.ownership import C4, INDEXER, SWA, installed_claims
from kvstrata.packed_indexer import CLAIM, plugin
from kvstrata.seams.report import SUPPORTED, compare
from kvstrata_host.leases.plan import planned, write_config
from kvstrata_host.leases.process import run
from kvstrata_host.leases.switch import check_plugin_stays_idle, turn

DSV4 = """\
from kvstrata_host.leases import model
from kvstrata.packed_indexer.plugin import SEAMS
result["hooks"] = hooks(SEAMS)
made = model.Model()
result["pool"] = type(made.pool.c4_indexer_kv_pool).__name__
result["leased"] = {}
if hasattr(made.allocator.full_attn_allocator, "pools"):
    tokens = made.start(2)
    result["leased"] = {each.name: each.ledger.leased_ids.tolist() for each in made.pools}
    made.allocator.free(tokens)
    result["left"] = sum(each.ledger.leased_ids.size for each in made.pools)
"""


def test_every_hook_is_pinned_to_what_is_installed() -> None:
    rows = compare(plugin.SEAMS)

    assert [row.status for row in rows] == [SUPPORTED]


@pytest.mark.parametrize("value", [None, "0", "false"])
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
def test_a_deepseek_v4_process_has_all_three_pools_managed_beside_the_autopatch() -> None:
    result = run(DSV4, ENABLE_KVCACHED="1", KVCACHED_CONTIGUOUS_LAYOUT="false")

    assert result["hooks"] == 1
    assert result["kvcached"] == "ElasticPagedTokenToKVPoolAllocator"
    assert result["pool"] == "BackedIndexerPool"
    assert result["leased"] == {SWA: [1, 2], C4: [1, 2], INDEXER: [1, 2]}
    assert result["left"] == 0


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_process_with_the_switch_off_has_no_hook_and_sglangs_pool() -> None:
    result = run(DSV4, ENABLE_KVCACHED="0")

    assert result["hooks"] == 0
    assert result["pool"] == "DeepSeekV4IndexerPool"


# What plan says of the indexer for these server arguments, and the bytes of a page.
PLANS: dict[str, tuple[tuple[str, ...], bool, str, int]] = {
    "FP8": ((), True, CLAIM.by, 8_448),
    "FP4": (("--enable-deepseek-v4-fp4-indexer",), True, CLAIM.by, 4_352),
    "HiSparse": (("--enable-hisparse",), True, CLAIM.by, 8_448),
    "TP 2": (("--tp", "2"), False, "TP size is 2", 8_448),
    "PD": (("--disaggregation-mode", "decode"), False, "PD disaggregation", 8_448),
}


@pytest.mark.parametrize(("arguments", "is_managed", "why", "size"), PLANS.values(), ids=PLANS)
def test_the_plan_shows_the_indexer_because_the_slice_is_installed(
    arguments: tuple[str, ...],
    is_managed: bool,
    why: str,
    size: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_config(tmp_path, [0, 4, 128, 4])

    indexer = planned(capsys, config, "--max-total-tokens", "262144", *arguments)[INDEXER]

    assert indexer["is_managed"] is is_managed
    assert why in indexer["why"]
    assert indexer["native_bytes"] == 1025 * size * 2
    assert indexer["least_bytes"] == (2 * (2 << 20) if is_managed else indexer["native_bytes"])


def test_every_pool_that_follows_page_ids_is_claimed() -> None:
    claims = installed_claims()

    assert claims.keys() == {SWA, C4, INDEXER}
    assert claims[INDEXER] == CLAIM
