# SPDX-License-Identifier: Apache-2.0
"""How many bytes of KV memory SGLang owns, by device and pool, and how many are mapped for it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from .discovery import managed_pools_of
from .ownership import ATTENTION_STATES, C4, C128, INDEXER, INDEXER_STATES, SWA

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

UNIFIED = "unified"


class Reservations:
    """Bytes that SGLang owns, by device and pool. Managed pools are not among them."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, str], int] = {}

    def report(self, device: str, pool: str, size_bytes: int) -> None:
        """Replace what a pool has on a device; 0 removes it. Negative sizes are refused."""
        if size_bytes < 0:
            raise ValueError(f"pool {pool} on {device} has {size_bytes} bytes; 0 is the least")
        self._bytes.pop((device, pool), None)
        if size_bytes:
            self._bytes[device, pool] = size_bytes

    def clear(self) -> None:
        self._bytes.clear()

    def on(self, device: str) -> Mapping[str, int]:
        """The bytes of each pool on a device; a copy."""
        return {pool: size for (where, pool), size in self._bytes.items() if where == device}

    def total_bytes(self, device: str) -> int:
        return sum(self.on(device).values())


RESERVATIONS = Reservations()
"""What SGLang owns in this process."""


def native_bytes(kvcache: "DeepSeekV4TokenToKVPool") -> Mapping[str, int]:
    """The bytes that SGLang owns of each pool; 0 for managed ones."""
    unified = kvcache.unified_kv_pool
    buffers = [] if unified is None else [*unified.kv_buffer, *unified.kv_buffer_rope]
    sizes = {UNIFIED: _size_of(buffers)}
    for name, pool in (
        (SWA, kvcache.swa_kv_pool),
        (C4, kvcache.kv_pools[4]),
        (C128, kvcache.kv_pools[128]),
    ):
        sizes[name] = 0 if pool is None else _size_of(pool.kv_buffer)
    managed = {pool.name for pool in managed_pools_of(kvcache) or ()}
    if INDEXER not in managed:
        sizes[INDEXER] = sum(
            _size_of(pool.contiguous_page_row_buffers()) for pool in kvcache.index_pools.values()
        )
    for name, states in (
        (ATTENTION_STATES, kvcache.compress_state_pools),
        (INDEXER_STATES, kvcache.indexer_compress_state_pools),
    ):
        sizes[name] = _size_of(
            state.kv_score_buffer.kv_score for state in states if state is not None
        )
    return sizes | dict.fromkeys(managed, 0)


def mapped_bytes(kvcache: "DeepSeekV4TokenToKVPool") -> Mapping[str, int]:
    """The physical memory of each managed pool."""
    return {pool.name: pool.mapped_bytes for pool in managed_pools_of(kvcache) or ()}


def _size_of(buffers: "Iterable[torch.Tensor | None]") -> int:
    return sum(buffer.nbytes for buffer in buffers if buffer is not None)
