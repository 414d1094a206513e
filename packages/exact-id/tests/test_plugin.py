# SPDX-License-Identifier: Apache-2.0
"""The plugin as SGLang loads it, in processes of their own, with kvcached's autopatch at work."""

import logging

import pytest

from kvstrata.exact_id import gating, plugin
from kvstrata.seams.report import SUPPORTED, compare
from kvstrata_host.leases.process import run

DSV4 = """\
from kvstrata.exact_id.plugin import SEAMS
result["hooks"] = hooks(SEAMS)
from kvstrata_host.leases import model as dsv4
pool = dsv4.make_pool()
allocator = dsv4.make_allocator(pool)
result["pool"] = type(pool.swa_kv_pool).__name__
result["allocators"] = [
    type(allocator.full_attn_allocator).__name__, type(allocator.swa_attn_allocator).__name__
]
T = dsv4.torch.tensor
tokens = allocator.alloc_extend(T([0]), T([0]), T([300]), T([300]), T([-1]), 300)
result["pages"] = dsv4.pages_of(tokens)
allocator.free(tokens)
result["available"] = allocator.available_size() // dsv4.PAGE_TOKENS
"""

OTHER = """\
from kvstrata.exact_id.plugin import SEAMS
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
result["hooks"] = hooks(SEAMS)
class Other(BaseSWAKVPool):
    def __init__(self): self.swa_kv_pool = self.full_kv_pool = None
    def register_mapping(self, mapping): pass
    def translate_loc_from_full_to_swa(self, indices): pass
    def get_state_buf_infos(self): pass
    get_key_buffer = get_value_buffer = get_kv_buffer = set_kv_buffer = None
import torch
try:
    swa.SWATokenToKVPoolAllocator(1024, 1024, 256, torch.uint8, "cpu", Other(), False)
    result["other"] = "made"
except ValueError as error:
    result["other"] = str(error)
"""


def test_every_hook_is_pinned_to_what_is_installed() -> None:
    rows = compare(plugin.SEAMS)

    assert len(rows) == 11
    assert {row.status for row in rows} == {SUPPORTED}


@pytest.mark.parametrize("found", [None, "0.1.5"])
def test_without_the_supported_kvcached_nothing_is_hooked_and_one_line_says_why(
    found: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ENABLE_KVCACHED", "1")
    monkeypatch.setattr(gating, "kvcached_version", lambda: found)
    monkeypatch.setattr(plugin, "apply", lambda seams: pytest.fail("hooked"))

    with caplog.at_level(logging.INFO):
        plugin.load()

    assert [message.startswith("DeepSeek-V4 pools stay native") for message in caplog.messages] == [
        True
    ]


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_with_the_switch_off_there_is_not_one_hook_and_everything_is_sglangs() -> None:
    result = run(DSV4, ENABLE_KVCACHED="0")

    assert result["hooks"] == 0
    assert result["pool"] == "DeepSeekV4SingleKVPool"
    assert result["allocators"] == ["PagedTokenToKVPoolAllocator"] * 2
    assert result["mha"] == "MHATokenToKVPool"


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_deepseek_v4_process_has_managed_swa_and_sglangs_ids_beside_the_autopatch() -> None:
    result = run(DSV4, ENABLE_KVCACHED="1", KVCACHED_CONTIGUOUS_LAYOUT="false")

    assert result["hooks"] == len(plugin.SEAMS.hooks)
    assert result["kvcached"] == "ElasticPagedTokenToKVPoolAllocator"
    assert result["pool"] == "BackedDeepSeekV4SingleKVPool"
    assert result["allocators"] == ["LeasedPagedAllocator"] * 2
    assert result["pages"] == [1, 2]
    assert result["available"] == 40


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_native_deepseek_v4_process_works_beside_the_autopatch() -> None:
    result = run(DSV4, ENABLE_KVCACHED="1")

    assert result["pool"] == "DeepSeekV4SingleKVPool"
    assert result["allocators"] == ["PagedTokenToKVPoolAllocator"] * 2
    assert (result["pages"], result["available"]) == ([1, 2], 40)


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_process_of_another_model_keeps_what_kvcached_patches() -> None:
    result = run(OTHER, ENABLE_KVCACHED="1", KVCACHED_CONTIGUOUS_LAYOUT="false")

    assert result["hooks"] == len(plugin.SEAMS.hooks)
    assert result["mha"] == "ElasticMHATokenToKVPool"
    assert result["other"] == "ElasticPagedTokenToKVPoolAllocator requires elastic MHA pool"
