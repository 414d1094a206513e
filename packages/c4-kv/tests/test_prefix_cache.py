# SPDX-License-Identifier: Apache-2.0
"""Pages that SGLang's radix cache keeps for other requests keep their memory."""

import pytest
import torch

from kvstrata.exact_id.ownership import C4, SWA
from kvstrata_host.leases.model import FULL_PAGES, PAGE_TOKENS, Model, pages_of
from kvstrata_host.leases.prefix_cache import PrefixCache

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]


def test_a_prefix_is_reused_with_its_history_and_evicted_with_its_memory(model: Model) -> None:
    cache = PrefixCache(model)
    idle = model.picture().pools
    shared = model.start(6)
    layers = model.pool.c4_kv_pool.kv_buffer
    for layer in layers:
        layer[pages_of(shared)] = 7
    prompt, retired = list(range(shared.numel())), 4 * PAGE_TOKENS
    model.allocator.free_swa_segment(shared[:retired], start_pos=0)
    cache.keep(prompt, shared, retired_count=retired)

    found = cache.find([*prompt, *range(10_000, 10_000 + PAGE_TOKENS)])
    assert torch.equal(found, shared)
    longer = model.extend(found, found.numel() + PAGE_TOKENS)
    assert longer is not None
    assert model.pools[C4].ledger.leased_ids.tolist() == [*pages_of(shared), *pages_of(longer)]
    model.allocator.free(longer)

    assert model.pools[SWA].ledger.leased_ids.size == 2
    assert model.pools[C4].ledger.leased_ids.tolist() == pages_of(shared)
    for layer in layers:
        assert layer[pages_of(shared)].eq(7).all()
    cache.evict(shared.numel())
    assert model.picture().pools == idle


def test_a_flush_gives_all_memory_back_and_starts_ids_at_1(model: Model) -> None:
    cache = PrefixCache(model)
    idle = model.picture().pools
    tokens = model.start(30)
    cache.keep(list(range(tokens.numel())), tokens)

    cache.flush()

    assert model.picture().pools == idle
    assert model.picture().full == list(range(1, FULL_PAGES + 1))
    assert cache.find(list(range(tokens.numel()))).numel() == 0
