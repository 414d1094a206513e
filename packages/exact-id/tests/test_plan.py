# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import pytest

from kvstrata.exact_id import ownership
from kvstrata.exact_id.__main__ import main
from kvstrata.exact_id.accounting import native_bytes
from kvstrata.exact_id.errors import SetupError
from kvstrata.exact_id.ownership import Claim
from kvstrata.exact_id.plan import ModelShape
from kvstrata.exact_id.transaction import IdSpace
from kvstrata_host.leases.plan import planned, write_config

CONFIG = Path(__file__).parent / "data" / "deepseek-v4.json"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "entry_points", lambda group: [])
    monkeypatch.setenv("ENABLE_KVCACHED", "1")
    monkeypatch.setenv("KVCACHED_CONTIGUOUS_LAYOUT", "false")
    monkeypatch.delenv("KVCACHED_PAGE_SIZE_MB", raising=False)


def test_swa_is_managed_and_the_sizes_are_worked_out(capsys: pytest.CaptureFixture[str]) -> None:
    pools = planned(capsys, CONFIG)

    assert [name for name, pool in pools.items() if pool["is_managed"]] == ["swa"]
    swa = pools["swa"]
    assert (swa["layer_count"], swa["page_count"], swa["page_bytes"]) == (8, 409, 149_760)
    assert swa["native_bytes"] == 410 * 149_760 * 8
    assert swa["virtual_bytes"] == 30 * 8 * (2 << 20)
    assert swa["least_bytes"] == 8 * (2 << 20)
    assert swa["straddling_share"] == pytest.approx(0.0709, abs=1e-4)
    assert pools["c4"]["virtual_bytes"] is None
    assert pools["c4"]["least_bytes"] == pools["c4"]["native_bytes"]
    assert pools["attention-states"]["page_bytes"] is None


def test_a_pool_that_an_installed_slice_claims_is_managed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Entry:
        """An entry point of importlib.metadata."""

        def load(self) -> Claim:
            return Claim("c4", IdSpace.FULL, "another slice")

    installed = {ownership.CLAIMS: [Entry()]}
    monkeypatch.setattr(ownership, "entry_points", lambda group: installed[group])

    pools = planned(capsys, CONFIG)

    assert (pools["c4"]["is_managed"], pools["c4"]["why"]) == (True, "by another slice")
    assert not pools["indexer"]["is_managed"]


PAGE_BYTES = {
    "as usual": ((), (149_760, 37_440, 1_728, 8_448)),
    "FP4 indexer": (("--enable-deepseek-v4-fp4-indexer",), (149_760, 37_440, 1_728, 4_352)),
    "uniform FP8": (("--dsv4-attn-backend", "trtllm"), (131_072, 32_768, 1_024, 8_448)),
}


@pytest.mark.parametrize(("arguments", "sizes"), PAGE_BYTES.values(), ids=PAGE_BYTES)
def test_a_page_is_as_large_as_its_layout(
    arguments: tuple[str, ...], sizes: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    pools = planned(capsys, CONFIG, *arguments)

    assert tuple(pools[name]["page_bytes"] for name in ("swa", "c4", "c128", "indexer")) == sizes


@pytest.mark.integration
def test_the_planned_sizes_are_those_of_real_pools(
    switched_on: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from kvstrata_host.leases.model import FULL_PAGES, PAGE_TOKENS, RATIOS, SWA_PAGES, make_pool

    monkeypatch.setenv("ENABLE_KVCACHED", "0")
    real = native_bytes(make_pool())

    pools = planned(
        capsys,
        write_config(tmp_path, RATIOS),
        "--max-total-tokens",
        str(FULL_PAGES * PAGE_TOKENS),
        "--swa-full-tokens-ratio",
        str(SWA_PAGES / FULL_PAGES),
    )

    for name in ("swa", "c4", "c128", "indexer"):
        assert pools[name]["native_bytes"] == real[name]


REASONS = {
    "TP": (("--tp", "2"), "the TP size is 2"),
    "PP": (("--pipeline-parallel-size", "2"), "the PP size is 2"),
    "memory saver": (("--enable-memory-saver",), "--enable-memory-saver"),
    "HiCache": (("--enable-hierarchical-cache",), "HiCache"),
    "cache linker": (("--enable-unified-cache-external-linker",), "a cache linker"),
    "PD": (("--disaggregation-mode", "prefill"), "PD disaggregation"),
    "device": (("--device", "npu:0"), "the device npu"),
}


@pytest.mark.parametrize(("arguments", "reason"), REASONS.values(), ids=REASONS)
def test_native_pools_say_why(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for pool in planned(capsys, CONFIG, *arguments).values():
        assert not pool["is_managed"]
        assert reason in pool["why"]


def test_kvcacheds_default_layout_keeps_every_pool_native(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVCACHED_CONTIGUOUS_LAYOUT")

    assert "KVCACHED_CONTIGUOUS_LAYOUT=false" in planned(capsys, CONFIG)["swa"]["why"]


def test_hisparse_leaves_swa_managed(capsys: pytest.CaptureFixture[str]) -> None:
    pools = planned(capsys, CONFIG, "--enable-hisparse")

    assert pools["swa"]["is_managed"]
    assert "HiSparse" in pools["c4"]["why"]


def test_larger_vmm_pages_come_from_kvcacheds_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCACHED_PAGE_SIZE_MB", "4")

    assert planned(capsys, CONFIG)["swa"]["virtual_bytes"] == 15 * 8 * (4 << 20)


def test_the_table_shows_each_pool_the_switch_and_what_was_passed_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_KVCACHED", "0")

    assert main(["plan", "--model-config", str(CONFIG), "--max-running-requests", "4"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["pool", "owner", "layers"]
    assert lines[1].split() == [
        "swa", "managed", "8", "409", "149760", "7.09%", "468.5", "480.0", "16.0",
        "by", "kvstrata-exact-id",
    ]  # fmt: skip
    assert "ENABLE_KVCACHED is off: as it is, every pool is SGLang's own." in lines
    assert lines[-1].endswith("--max-running-requests 4")


WRONG = {
    "no such file": (["--model-config", "missing.json"], "--model-config is 'missing.json'"),
    "page size": (["--page-size", "64"], "--page-size is 64; allowed: 256"),
    "ratio": (["--swa-full-tokens-ratio", "0"], "--swa-full-tokens-ratio is 0.0"),
    "too few tokens": (["--max-total-tokens", "256"], "--max-total-tokens is 256"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_named_with_what_is_allowed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--model-config", str(CONFIG), *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "compress_ratios is None"),
        ({"compress_ratios": [0, 3]}, "compress_ratios is"),
        ({"compress_ratios": [4], "index_head_dim": "128"}, "index_head_dim is '128'"),
    ],
)
def test_another_models_config_is_refused(config: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        ModelShape.from_config(config)


def test_a_plan_needs_neither_sglang_nor_torch() -> None:
    probe = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['sglang', 'torch', 'kvcached']))\n"
        "from kvstrata.exact_id.__main__ import main\n"
        f"raise SystemExit(main(['plan', '--model-config', {str(CONFIG)!r}]))\n"
    )

    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pool")
