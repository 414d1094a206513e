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
from kvstrata_host.leases.gpu import SWA_PAGES, free_bytes, gpu_only, model_on_gpu

if TYPE_CHECKING:
    from kvstrata_host.leases.model import Model

pytestmark = gpu_only


@pytest.fixture
def model() -> Iterator["Model"]:
    with model_on_gpu(exact_id, c4_kv) as made:
        yield made


def test_the_fused_store_writes_what_it_writes_to_a_native_pool(
    model: "Model", monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstrata_host.leases.model import make_pool

    monkeypatch.setenv("ENABLE_KVCACHED", "0")
    native = make_pool(device=model.pool.device)
    tokens = model.start(60)
    where = torch.arange(64, 60 * 64, 31, device=tokens.device, dtype=torch.int32)
    latent = torch.randn(where.numel(), 512, device=tokens.device).bfloat16()

    for pool in (native, model.pool):
        pool.set_extra_key_buffer_fused(1, where, latent)

    written = [pool.c4_kv_pool.kv_buffer[0][1:60] for pool in (native, model.pool)]
    assert written[0].any()
    assert torch.equal(*written)


def test_history_outlives_its_window_and_the_gpu_gets_its_memory_back(model: "Model") -> None:
    idle = free_bytes()
    tokens = model.start(SWA_PAGES)
    ids = torch.unique(tokens // 256)
    for number, layer in enumerate(model.pool.c4_kv_pool.kv_buffer):
        layer[ids] = number + 1

    model.allocator.free_swa_segment(tokens, start_pos=0)
    for number, layer in enumerate(model.pool.c4_kv_pool.kv_buffer):
        assert layer[ids].eq(number + 1).all()
    held = model.pools["c4"].mapped_bytes - model.pools["c4"].geometry.floor_bytes
    assert idle - free_bytes() == pytest.approx(held, abs=32 << 20)
    model.allocator.free_full_segment(tokens, start_pos=0)

    assert idle - free_bytes() == pytest.approx(0, abs=32 << 20)


def test_a_limit_of_c4_makes_a_miss_that_changes_nothing_and_is_lifted_again(
    model: "Model",
) -> None:
    pool = model.pools["c4"]
    tokens = model.start(SWA_PAGES)
    start = pool.limit_state.limit_bytes

    assert pool.set_memory_limit(0, revision=1).status is LimitStatus.DEFERRED
    model.allocator.free(tokens)
    assert pool.limit_state.status is LimitStatus.APPLIED
    before = model.picture()
    assert model.extend(torch.empty(0, dtype=torch.int64), 100 * 256) is None
    assert model.picture() == before
    pool.set_memory_limit(start, revision=2)

    assert model.start(SWA_PAGES).numel() == tokens.numel()
