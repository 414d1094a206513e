# SPDX-License-Identifier: Apache-2.0
"""KVCR: through the slice's store, and by its own calls alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from hicache import SMALLEST_PAGE_BYTES, HostMemory, host_memory, storage_config
from kvcr.types import BlockKey, MemoryRef
from raw_kvcr import DEADLINES, RawKvcr
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

from kvstrata.kvcr import nixl_thread
from kvstrata.kvcr.activation import activate
from kvstrata.kvcr.endpoints import Endpoint
from kvstrata.kvcr.hints import Hint, carrying
from kvstrata.kvcr.keys import page_keys
from kvstrata.kvcr.layout import HostPages
from kvstrata.kvcr.pools import HostPools
from kvstrata.kvcr.store import KvcrStore
from kvstrata_host.ports import free_ports

from .side import Address, Side, check_all, contents, differing

_HOST = "127.0.0.1"
_NAMESPACE = b"raw"
"""Of the keys of KVCR alone."""


def _hint(peer: Address, keys: Sequence[str]) -> Hint | None:
    """On a target, the hint that names these pages at the source."""
    if not peer:
        return None
    return Hint(Endpoint(_HOST, int(str(peer["port"]))), frozenset(int(k[:16], 16) for k in keys))


class Store(Side):
    """The slice's HiCache backend, by the calls that SGLang makes; a target follows a hint.

    `settings` go into its extra config.
    """

    def __init__(
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, Any]
    ) -> None:
        super().__init__(memory, most, peer, settings)
        self._control_port, nixl_port = free_ports(2)
        own = {
            "dram_bytes": self.tier_bytes,
            "control_port": self._control_port,
            "nixl_port": nixl_port,
            "model_id": "bench",
            "trust_request_hints": True,
            "operation_timeout_seconds": DEADLINES.operation_seconds,
            "abandon_timeout_seconds": DEADLINES.abandon_seconds,
        }
        # Their option is refused where SGLang has none.
        metrics = "stage_metrics" in (settings.get("tuning") or {})
        config = storage_config({**own, **settings}, metrics=metrics)
        self.store = KvcrStore(config, "unused")
        self.register()
        self.store.start()

    def register(self) -> None:
        """Register the host pools, before the start."""
        self.store.register_mem_pool_host(self.memory.pool)

    def address(self) -> Address:
        return {"port": self._control_port}

    def set(self, keys: Sequence[str]) -> None:
        check_all(self.store.batch_set_v1(keys, self.memory.indices(0, len(keys))), "set")

    def get(self, keys: Sequence[str]) -> None:
        with carrying(_hint(self.peer, keys)):
            indices = self.memory.indices(self.most, len(keys))
            check_all(self.store.batch_get_v1(keys, indices), "get")

    def exists(self, keys: Sequence[str]) -> int:
        with carrying(_hint(self.peer, keys)):
            return self.store.batch_exists(keys)

    def close(self) -> None:
        self.store.close()


class Raw(Side):
    """KVCR's own calls on the references of the same pages."""

    idle_seconds = 0.005

    def __init__(
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, object]
    ) -> None:
        super().__init__(memory, most, peer, settings)
        # As in the slice: a thread that spins would take a core from every contender.
        activate(nixl_thread.SEAMS)
        self._pages = HostPages.of("kv", memory.pool)
        agent = "raw-target" if peer else "raw-source"
        self._raw = RawKvcr(HostPools.of([self._pages]), self.tier_bytes, agent=agent)

    def address(self) -> Address:
        return {"port": self._raw.control_port}

    def set(self, keys: Sequence[str]) -> None:
        self._raw.deposit(self._references(keys, 0))

    def get(self, keys: Sequence[str]) -> None:
        self._raw.deliver(self._references(keys, self.most), _hint(self.peer, keys))

    def exists(self, keys: Sequence[str]) -> int:
        return self._raw.query(page_keys(keys, _NAMESPACE), _hint(self.peer, keys))

    def idle(self) -> None:
        self._raw.serve()

    def close(self) -> None:
        self._raw.close()

    def _references(self, keys: Sequence[str], first: int) -> dict[BlockKey, list[MemoryRef]]:
        return {
            key: self._pages.references(self._raw.agent, first + at)
            for at, key in enumerate(page_keys(keys, _NAMESPACE))
        }


class WithSidecar(Store):
    """A model that has an indexer beside its KV: one eighth of a page more, in a pool of its own.

    Whether the pools are moved together or one after the other is the store's to say, as it is for
    the slice's own controller.
    """

    def __init__(
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, object]
    ) -> None:
        side_bytes = max(SMALLEST_PAGE_BYTES, memory.page_bytes // 8)
        self._beside = host_memory(side_bytes, 2 * most)
        super().__init__(memory, most, peer, settings)

    @property
    def tier_bytes(self) -> int:
        return super().tier_bytes + 4 * self.most * self._beside.page_bytes

    def register(self) -> None:
        super().register()
        self.store.register_mem_host_pool_v2(self._beside.pool, PoolName.INDEXER)

    def set(self, keys: Sequence[str]) -> None:
        kv, sidecar = self._transfers(keys, 0)
        together = self.store.ways.joins_kv(sidecar)
        results = self.store.batch_set_v2([kv, sidecar] if together else [sidecar])
        check_all(results[PoolName.INDEXER], "set of the sidecar")
        if together:
            check_all(results[PoolName.KV], "set")
        else:
            super().set(keys)

    def get(self, keys: Sequence[str]) -> None:
        kv, sidecar = self._transfers(keys, self.most)
        together = self.store.ways.joins_kv(sidecar)
        if not together:
            super().get(keys)
        with carrying(_hint(self.peer, keys)):
            results = self.store.batch_get_v2([kv, sidecar] if together else [sidecar])
        check_all(results[PoolName.INDEXER], "get of the sidecar")
        if together:
            check_all(results[PoolName.KV], "get")

    def fill(self, pages: int, seed: int) -> None:
        super().fill(pages, seed)
        self._beside.page_contents(0, pages).copy_(contents(self._beside, pages, seed + 1))

    def wipe(self, pages: int) -> None:
        super().wipe(pages)
        self._beside.page_contents(self.most, pages).zero_()

    def wrong_pages(self, pages: int, seed: int) -> int:
        found = self._beside.page_contents(self.most, pages)
        wrong = differing(found, contents(self._beside, pages, seed + 1))
        return max(wrong, super().wrong_pages(pages, seed))

    def _transfers(self, keys: Sequence[str], first: int) -> tuple[PoolTransfer, PoolTransfer]:
        indices, hashes = self.memory.indices(first, len(keys)), list(keys)
        return (
            PoolTransfer(name=PoolName.KV, host_indices=indices, keys=hashes),
            PoolTransfer(
                name=PoolName.INDEXER,
                host_indices=indices,
                keys=hashes,
                indices_from_pool=PoolName.KV,
            ),
        )
