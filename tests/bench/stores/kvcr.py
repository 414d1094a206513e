# SPDX-License-Identifier: Apache-2.0
"""KVCR: through the slice's store, and by its own calls alone."""

from collections.abc import Mapping, Sequence

from hicache import HostMemory, storage_config
from kvcr.types import BlockKey, MemoryRef
from raw_kvcr import RawKvcr

from kvstrata.kvcr import nixl_thread
from kvstrata.kvcr.activation import activate
from kvstrata.kvcr.endpoints import Endpoint
from kvstrata.kvcr.hints import Hint, carrying
from kvstrata.kvcr.layout import HostPages
from kvstrata.kvcr.pools import HostPools
from kvstrata.kvcr.store import KvcrStore
from kvstrata_host.ports import free_ports

from .side import Address, Side, check_all

_HOST = "127.0.0.1"


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
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, object]
    ) -> None:
        super().__init__(memory, most, peer, settings)
        self._control_port, nixl_port = free_ports(2)
        own = {
            "dram_bytes": self.tier_bytes,
            "control_port": self._control_port,
            "nixl_port": nixl_port,
            "model_id": "bench",
            "trust_request_hints": True,
        }
        self._store = KvcrStore(storage_config({**own, **settings}), "unused")
        self._store.register_mem_pool_host(memory.pool)
        self._store.start()

    def address(self) -> Address:
        return {"port": self._control_port}

    def set(self, keys: Sequence[str]) -> None:
        check_all(self._store.batch_set_v1(keys, self.memory.indices(0, len(keys))), "set")

    def get(self, keys: Sequence[str]) -> None:
        with carrying(_hint(self.peer, keys)):
            indices = self.memory.indices(self.most, len(keys))
            check_all(self._store.batch_get_v1(keys, indices), "get")

    def exists(self, keys: Sequence[str]) -> int:
        with carrying(_hint(self.peer, keys)):
            return self._store.batch_exists(keys)

    def close(self) -> None:
        self._store.close()


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
        return self._raw.query([_key(each) for each in keys], _hint(self.peer, keys))

    def idle(self) -> None:
        self._raw.serve()

    def close(self) -> None:
        self._raw.close()

    def _references(self, keys: Sequence[str], first: int) -> dict[BlockKey, list[MemoryRef]]:
        return {
            _key(key): self._pages.references(self._raw.agent, first + at)
            for at, key in enumerate(keys)
        }


def _key(page_hash: str) -> BlockKey:
    return BlockKey(bytes.fromhex(page_hash) + b"raw")
