# SPDX-License-Identifier: Apache-2.0
"""The cases that need the memory of a real GPU. They run where there is one, with SGLang and
kvcached for CUDA, and are reported as not run elsewhere."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from kvstrata.c4_kv import plugin as c4_kv
from kvstrata.exact_id import plugin as exact_id
from kvstrata.exact_id.limits import LimitStatus
from kvstrata.packed_indexer import plugin as packed_indexer
from kvstrata_host.leases.gpu import FULL_PAGES, SWA_PAGES, free_bytes, gpu_only, model_on_gpu

if TYPE_CHECKING:
    from kvstrata_host.leases.model import Model

pytestmark = gpu_only


@pytest.fixture
def model() -> Iterator["Model"]:
    with model_on_gpu(exact_id, c4_kv, packed_indexer) as made:
        yield made


@pytest.mark.parametrize("layout", ["fp8", "fp4"])
def test_the_fused_store_writes_what_it_writes_to_a_native_pool(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstrata_host.leases.model import make_pool, publish_configuration

    publish_configuration()
    from sglang.srt.runtime_context import get_context

    with (
        get_context().override_server_args(enable_deepseek_v4_fp4_indexer=layout == "fp4"),
        model_on_gpu(exact_id, c4_kv, packed_indexer) as model,
    ):
        monkeypatch.setenv("ENABLE_KVCACHED", "0")
        native = make_pool(
            device=model.pool.device, c4_size=FULL_PAGES * 64, c128_size=FULL_PAGES * 2
        )
        model.allocator.full_attn_allocator.alloc(FULL_PAGES * 256)
        where = torch.arange(64, FULL_PAGES * 64, 31, device=model.pool.device)
        keys = torch.randn(where.numel(), 128, device=where.device).bfloat16()

        for pool in (native, model.pool):
            if layout == "fp4":
                pool.set_index_k_fp4(1, where, keys)
            else:
                pool.set_index_k_fused(1, where.int(), keys)

        written = [
            pool.c4_indexer_kv_pool.index_k_with_scale_buffer[0][1:FULL_PAGES]
            for pool in (native, model.pool)
        ]
        assert written[0].any()
        assert torch.equal(*written)


def test_index_keys_outlive_their_window_and_the_gpu_gets_all_memory_back(model: "Model") -> None:
    idle = free_bytes()
    requests = [model.start(SWA_PAGES // 2)]
    for _ in range(5):
        model.allocator.free_swa_segment(requests[-1], start_pos=0)
        requests.append(model.start(SWA_PAGES // 2))
    keys = model.pool.c4_indexer_kv_pool.index_k_with_scale_buffer
    for number, layer in enumerate(keys):
        layer[1 : FULL_PAGES + 1] = number + 1

    for request in requests[1:]:
        model.allocator.free_full_segment(request, start_pos=0)
    for number, layer in enumerate(keys):
        assert layer[torch.unique(requests[0] // 256)].eq(number + 1).all()
    model.allocator.clear()

    assert idle - free_bytes() == pytest.approx(0, abs=32 << 20)


def test_a_limit_of_index_keys_makes_a_miss_that_changes_nothing_and_is_lifted_again(
    model: "Model",
) -> None:
    pool = model.pools["indexer"]
    full = model.allocator.full_attn_allocator
    tokens = full.alloc(FULL_PAGES * 256)
    start = pool.limit_state.limit_bytes

    assert pool.set_memory_limit(0, revision=1).status is LimitStatus.DEFERRED
    full.free(tokens)
    assert pool.limit_state.status is LimitStatus.APPLIED
    before = model.picture()
    assert full.alloc(FULL_PAGES * 256) is None
    assert model.picture() == before
    pool.set_memory_limit(start, revision=2)

    assert full.alloc(FULL_PAGES * 256).numel() == tokens.numel()
