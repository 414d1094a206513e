# SPDX-License-Identifier: Apache-2.0
"""Pools and allocators as SGLang's configurator makes them for a model runner: target and draft."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvstrata.exact_id.accounting import RESERVATIONS
from kvstrata.exact_id.discovery import managed_pools_behind, managed_pools_of, owners_of
from kvstrata.exact_id.ownership import SWA
from kvstrata_host.leases.model import FULL_PAGES, PAGE_TOKENS, RATIOS, SWA_PAGES

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]

FULL_TOKENS = FULL_PAGES * PAGE_TOKENS
SWA_TOKENS = SWA_PAGES * PAGE_TOKENS
REQUESTS = SimpleNamespace(req_to_token=torch.zeros(5, 1, dtype=torch.int32))


@pytest.fixture(autouse=True)
def _cuda_branches(no_reservations: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SGLang's page size for the model, and its branches for CUDA."""
    from sglang.srt.mem_cache import kv_cache_configurator as configurator
    from sglang.srt.runtime_context import get_context

    monkeypatch.setattr(
        configurator, "current_platform", SimpleNamespace(is_out_of_tree=lambda: False)
    )
    with get_context().override_server_args(page_size=PAGE_TOKENS):
        yield


class Runner:
    """What of a model runner its configurator reads, and the configurator's own methods."""

    def __init__(self, *, draft: bool = False) -> None:
        from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

        self._methods = KVCacheConfigurator
        layers = 1 if draft else len(RATIOS)
        self.seen = SimpleNamespace(
            is_draft_worker=draft,
            is_hybrid_swa=True,
            is_hybrid_swa_mtp_draft=False,
            draft_swa_full_capacity=False,
            hybrid_gdn_config=None,
            pool_page_size=PAGE_TOKENS,
            page_size=PAGE_TOKENS,
            kv_cache_dtype=torch.float8_e4m3fn,
            device="cpu",
            layer_info=SimpleNamespace(
                num_effective_layers=layers, start_layer=0, end_layer=layers
            ),
            model_config=SimpleNamespace(
                compress_ratios=RATIOS,
                window_size=128,
                qk_nope_head_dim=448,
                qk_rope_head_dim=64,
                index_head_dim=128,
            ),
        )

    def make(self, allocator: Any = None) -> tuple[Any, Any]:
        """A pool, and its allocator: a new one, or `allocator` of the target."""
        pool = self._methods._build_dsv4_kv_pool(
            self.seen,
            max_running_requests=4,
            swa_max_total_num_tokens=SWA_TOKENS,
            c4_max_total_num_tokens=FULL_TOKENS // 4,
            c128_max_total_num_tokens=FULL_TOKENS // 128,
            c4_state_pool_size=64,
            c128_state_pool_size=64,
            c4_state_dtype=torch.float32,
            c128_state_dtype=torch.float32,
            req_to_token_pool=REQUESTS,
        )
        made = self._methods._build_token_to_kv_pool_allocator(
            self.seen,
            sizes=SimpleNamespace(
                max_total_num_tokens=FULL_TOKENS,
                full_max_total_num_tokens=FULL_TOKENS,
                swa_max_total_num_tokens=SWA_TOKENS,
            ),
            token_to_kv_pool=pool,
            is_dsv4_model=True,
            req_to_token_pool=REQUESTS,
            token_to_kv_pool_allocator=allocator,
        )
        return pool, made


def extend(allocator: Any, pages: int) -> torch.Tensor:
    none, length = torch.tensor([0]), torch.tensor([pages * PAGE_TOKENS])
    tokens: torch.Tensor = allocator.alloc_extend(
        none, none, length, length, torch.tensor([-1]), pages * PAGE_TOKENS
    )
    return tokens


def test_a_runner_with_the_switch_off_has_sglangs_pools_and_allocators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENABLE_KVCACHED", "0")

    pool, allocator = Runner().make()

    assert managed_pools_of(pool) is None
    assert owners_of(pool) == ()
    assert type(allocator.swa_attn_allocator).__name__ == "PagedTokenToKVPoolAllocator"
    assert extend(allocator, 2).numel() == 2 * PAGE_TOKENS


def test_a_runner_with_the_switch_on_has_managed_swa_under_sglangs_ids() -> None:
    pool, allocator = Runner().make()

    pools = managed_pools_behind(allocator)
    assert pools is not None
    assert pools is managed_pools_of(pool)
    extend(allocator, 3)
    assert pools[SWA].ledger.leased_ids.tolist() == [1, 2, 3]
    pools.close()


# SGLang warns of itself when its draft model is imported.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_draft_runner_has_native_pools_on_the_ids_of_its_target() -> None:
    _, allocator = Runner().make()
    pools = managed_pools_behind(allocator)
    assert pools is not None

    draft, shared = Runner(draft=True).make(allocator)

    assert shared is allocator
    assert managed_pools_of(draft) is None
    assert draft.full_to_swa_index_mapping is allocator.full_to_swa_index_mapping
    assert {name for name in RESERVATIONS.on("cpu") if "swa" in name} == {"draft-swa"}
    extend(shared, 3)
    assert pools[SWA].ledger.leased_ids.tolist() == [1, 2, 3]
    pools.close()
