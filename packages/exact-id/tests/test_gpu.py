# SPDX-License-Identifier: Apache-2.0
"""The cases that need the memory of a real GPU. They run where there is one, with SGLang and
kvcached for CUDA, and are reported as not run elsewhere."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

from kvstrata.exact_id import plugin
from kvstrata_host.leases.gpu import SWA_PAGES, free_bytes, gpu_only, model_on_gpu

if TYPE_CHECKING:
    from kvstrata_host.leases.model import Model

pytestmark = gpu_only


@pytest.fixture
def model() -> Iterator["Model"]:
    with model_on_gpu(plugin) as made:
        yield made


def test_packed_rows_keep_their_bytes_while_neighbours_come_and_go(model: "Model") -> None:
    tokens = model.start(SWA_PAGES)
    swa = model.allocator.translate_loc_from_full_to_swa(tokens)
    half = tokens.numel() // 2
    kept = torch.unique(swa[half:] // 256)
    for number, layer in enumerate(model.pool.swa_kv_pool.kv_buffer):
        layer[kept] = number + 1

    model.allocator.free_swa_segment(tokens[:half], start_pos=0)

    for number, layer in enumerate(model.pool.swa_kv_pool.kv_buffer):
        assert layer[kept].eq(number + 1).all()


def test_the_gpu_gets_memory_back_as_leases_end(model: "Model") -> None:
    idle = free_bytes()
    tokens = model.start(SWA_PAGES)
    taken = model.pools["swa"].mapped_bytes - model.pools["swa"].geometry.floor_bytes
    assert taken > 0
    assert idle - free_bytes() == pytest.approx(taken, abs=32 << 20)

    model.allocator.free(tokens)

    assert idle - free_bytes() == pytest.approx(0, abs=32 << 20)


def test_a_miss_restores_free_lists_and_mapping(model: "Model") -> None:
    pool = model.pools["swa"]
    model.start(10)
    pool.set_memory_limit(pool.mapped_bytes, revision=1)
    before = model.picture()

    assert model.extend(torch.empty(0, dtype=torch.int64), 100 * 256) is None

    assert model.picture() == before


def test_a_limit_below_use_is_deferred_then_applied_and_lifted(model: "Model") -> None:
    from kvstrata.exact_id.limits import LimitStatus

    pool = model.pools["swa"]
    tokens = model.start(SWA_PAGES)
    start = pool.limit_state.limit_bytes

    deferred = pool.set_memory_limit(2 * pool.geometry.bundle_bytes, revision=1)
    model.allocator.free(tokens)
    applied = pool.limit_state
    pool.set_memory_limit(start, revision=2)

    assert (deferred.status, applied.status) == (LimitStatus.DEFERRED, LimitStatus.APPLIED)
    assert model.start(SWA_PAGES).numel() == tokens.numel()
