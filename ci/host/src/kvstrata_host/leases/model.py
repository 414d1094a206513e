# SPDX-License-Identifier: Apache-2.0
"""Real DeepSeek-V4 pools and allocators of SGLang, small and on a CPU.

To be imported after kvcached's environment is set, see `fixtures`.
"""

import warnings
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

# What SGLang's imports warn about is nobody's concern here.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
    from sglang.srt.runtime_context import get_context

    from kvstrata.exact_id import construction

from kvstrata.exact_id.discovery import managed_pools_of
from kvstrata.exact_id.transaction import ManagedPools
from kvstrata_host.dsv4 import PAGE_TOKENS, make_device_pool

__all__ = [
    "FULL_PAGES",
    "PAGE_TOKENS",
    "RATIOS",
    "SWA_PAGES",
    "Model",
    "Picture",
    "construction",
    "make_allocator",
    "make_pool",
    "pages_of",
    "publish_configuration",
    "tokens_of",
    "unify",
]

RATIOS = [0, 4, 128, 4]
FULL_PAGES = 64
SWA_PAGES = 40


@cache
def publish_configuration() -> None:
    """SGLang's defaults: one rank of one stage."""
    get_context().override_server_args().install()


def unify(environment: pytest.MonkeyPatch) -> None:
    """Have SGLang choose its unified layout."""
    from sglang.kernels.ops.attention.dsv4.unified_kv_kernels import env_gate

    for module in (env_gate, construction):
        environment.setattr(module, "is_unified_kv_triton", lambda: True)


def make_pool(**changes: Any) -> DeepSeekV4TokenToKVPool:
    ratios = changes.pop("compression_ratios", RATIOS)
    pool: DeepSeekV4TokenToKVPool = make_device_pool(
        FULL_PAGES * PAGE_TOKENS, SWA_PAGES * PAGE_TOKENS, ratios, **changes
    )
    return pool


def make_allocator(
    pool: DeepSeekV4TokenToKVPool, full_pages: int = FULL_PAGES, swa_pages: int = SWA_PAGES
) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(
        full_pages * PAGE_TOKENS,
        swa_pages * PAGE_TOKENS,
        PAGE_TOKENS,
        torch.float8_e4m3fn,
        pool.device,
        pool,
        need_sort=False,
    )


@dataclass
class Model:
    """A pool with its allocator, and what happens to it as a scheduler would make it happen."""

    pool: DeepSeekV4TokenToKVPool = field(default_factory=make_pool)
    full_pages: int = FULL_PAGES
    swa_pages: int = SWA_PAGES
    allocator: SWATokenToKVPoolAllocator = field(init=False)

    def __post_init__(self) -> None:
        self.allocator = make_allocator(self.pool, self.full_pages, self.swa_pages)

    @property
    def pools(self) -> ManagedPools:
        found = managed_pools_of(self.pool)
        if found is None:
            raise LookupError("every pool of this model is native")
        return found

    def extend(self, prefix: torch.Tensor, length: int) -> torch.Tensor | None:
        """The tokens that a request of the tokens `prefix` gets to be `length` tokens long."""
        device = self.pool.device
        before, after = torch.tensor([prefix.numel()]), torch.tensor([length])
        last = prefix[-1:] if prefix.numel() else torch.tensor([-1], device=device)
        count = length - prefix.numel()
        tokens: torch.Tensor | None = self.allocator.alloc_extend(
            before.to(device), before, after.to(device), after, last, count
        )
        return tokens

    def start(self, page_count: int) -> torch.Tensor:
        """The tokens of a new request of `page_count` pages."""
        tokens = self.extend(torch.empty(0, dtype=torch.int64), page_count * PAGE_TOKENS)
        if tokens is None:
            raise MemoryError(f"no {page_count} pages")
        return tokens

    def without_kernels(self, page_count: int) -> torch.Tensor | None:
        """The tokens of whole new pages, by the transaction of an extension but not its kernels."""
        from kvstrata.exact_id.allocator import Want, allocate

        full, swa = self.allocator.full_attn_allocator, self.allocator.swa_attn_allocator

        def take() -> torch.Tensor:
            tokens: torch.Tensor = full.alloc(page_count * PAGE_TOKENS)
            self.allocator.set_full_to_swa_mapping(tokens, swa.alloc(page_count * PAGE_TOKENS))
            return tokens

        want = Want(page_count, reach=page_count)
        return allocate({full: want, swa: want}, take)

    def hand_out_next(self, *full_ids: int) -> None:
        """Let SGLang take these full pages first."""
        side = self.allocator.full_attn_allocator
        others = [each for each in side.free_pages.tolist() if each not in full_ids]
        side.free_pages = torch.tensor([*full_ids, *others])

    def decode(self, *requests: torch.Tensor) -> torch.Tensor | None:
        """The next token of each request."""
        lengths = torch.tensor([request.numel() + 1 for request in requests])
        last = torch.stack([request[-1] for request in requests])
        tokens: torch.Tensor | None = self.allocator.alloc_decode(
            lengths.to(self.pool.device), lengths, last
        )
        return tokens

    def picture(self) -> "Picture":
        return Picture(
            full=self.allocator.full_attn_allocator.get_all_free_pages().tolist(),
            swa=self.allocator.swa_attn_allocator.get_all_free_pages().tolist(),
            mapping=self.allocator.full_to_swa_index_mapping.tolist(),
            pools=[
                (
                    each.name,
                    each.ledger.leased_ids.tolist(),
                    each.ledger.holders(each.name),
                    each.backing.mapped_pages.tolist(),
                )
                for each in managed_pools_of(self.pool) or ()
            ],
        )


@dataclass(frozen=True)
class Picture:
    """All that a failed call may not change.

    The free pages of both sides in their order, the mapping from full to SWA tokens, and of each
    managed pool: leased ids, holders and mapped VMM pages.
    """

    full: list[int]
    swa: list[int]
    mapping: list[int]
    pools: list[tuple[str, list[int], list[int], list[int]]]


def pages_of(tokens: torch.Tensor) -> list[int]:
    """The page ids of tokens, ascending."""
    ids: list[int] = torch.unique(tokens // PAGE_TOKENS).tolist()
    return ids


def tokens_of(page_ids: list[int]) -> torch.Tensor:
    """All tokens of the pages, in their order."""
    ids = torch.tensor(page_ids, dtype=torch.int64)
    return (ids[:, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS)).reshape(-1)
