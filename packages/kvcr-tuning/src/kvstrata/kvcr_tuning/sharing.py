# SPDX-License-Identifier: Apache-2.0
"""One copy of replicated pages for all ranks of a server, kept by rank 0.

Every rank has the same bytes of MLA's KV and of its indexer, so rank 0 alone backs them up, and the
others restore them from there like from a peer. What may be restored is for rank 0 to say: the
ranks agree on what all of them can restore, and the others agree to everything.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvcr.types import BlockKey, CacheTier
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.runtime_context import get_parallel

from kvstrata.kvcr.batch import Batch
from kvstrata.kvcr.config import KvcrConfig
from kvstrata.kvcr.errors import ConfigError
from kvstrata.kvcr.extension import Extension, Surroundings
from kvstrata.kvcr.hints import Hint
from kvstrata.kvcr.keys import event_hash
from kvstrata.kvcr.pools import HostPools
from kvstrata.kvcr.runner import Runner

from .around import Around

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

_KEEPER = 0
_REPLICATED = frozenset({PoolName.KV.value, PoolName.INDEXER.value})


def check_replicated(topology: "HiCacheStorageConfig") -> None:
    """Raise ConfigError unless the ranks of a server have the same bytes of each page."""
    if not topology.is_mla_model:
        raise _refusal("a model with replicated KV (MLA)", "each rank of this model has its own KV")
    for setting, size in (
        ("--attn-cp-size", topology.attn_cp_size),
        ("--pp-size", topology.pp_size),
        ("--nnodes", get_parallel().nnodes),
    ):
        if size > 1:
            raise _refusal(f"{setting} 1", f"{setting} is {size}")


def _refusal(allowed: str, because: str) -> ConfigError:
    fix = f"Leave it out: {because}."
    return ConfigError(
        setting="tuning.shared_mla", value=True, allowed=f"false, or {allowed}", fix=fix
    )


class SharedPages(Around):
    """Names pages alike on all ranks; ranks other than 0 back up none and restore rank 0's."""

    shared_pages: bool
    keeps_pages: bool

    def __init__(self, inner: Extension, surroundings: Surroundings) -> None:
        super().__init__(inner)
        self.shared_pages = True
        self.keeps_pages = surroundings.rank == _KEEPER
        self._source = surroundings.own.of_rank(_KEEPER)

    def prepare(self, pools: HostPools) -> HostPools:
        for pages in pools.pools.values():
            if pages.is_logical or pages.name not in _REPLICATED:
                allowed = f"no host pools but {' and '.join(sorted(_REPLICATED))}"
                raise _refusal(allowed, f"the ranks are not known to have the same {pages.name}")
        return self.inner.prepare(pools)

    def dram_bytes(self, config: KvcrConfig, pools: HostPools) -> int:
        if self.keeps_pages or config.peer_restore_mode == "staged":
            return self.inner.dram_bytes(config, pools)
        # KVCR wants a tier; nothing is ever put into this one.
        return sum(pages.page_bytes for pages in pools.physical)

    def counterpart(self, rank: int) -> int:
        return _KEEPER

    def locate(
        self, runner: Runner, keys: Sequence[BlockKey], hint: Hint | None
    ) -> list[CacheTier | None]:
        if self.keeps_pages:
            return self.inner.locate(runner, keys, hint)
        return [CacheTier.REMOTE_G2] * len(keys)

    def restore(
        self, runner: Runner, batch: Batch, found: Mapping[BlockKey, CacheTier], hint: Hint | None
    ) -> list[bool]:
        if self.keeps_pages:
            return self.inner.restore(runner, batch, found, hint)
        own = Hint(self._source, frozenset(map(event_hash, found)))
        filled = dict(zip(found, runner.deliver(batch.only(found), own), strict=True))
        missed = {
            key: tier
            for key, tier in found.items()
            if not filled[key] and hint is not None and event_hash(key) in hint.hashes
        }
        if missed:
            again = self.inner.restore(runner, batch, missed, hint)
            filled.update(zip(missed, again, strict=True))
        return list(filled.values())
