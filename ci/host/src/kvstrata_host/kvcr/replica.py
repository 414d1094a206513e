# SPDX-License-Identifier: Apache-2.0
"""A store on a model's host pools without a controller, with contents that tell every page apart.

Run as: python -m kvstrata_host.kvcr.replica <layout> <kind>:<control port>:<nixl port>...
It backs up pages of every kind, then answers peers until told to end.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolTransfer

from kvstrata.kvcr.endpoints import Endpoint
from kvstrata.kvcr.hints import Hint
from kvstrata.kvcr.runner import Runner
from kvstrata.kvcr.store import KvcrStore
from kvstrata_host.hybrid import HYBRIDS, make_hybrid
from kvstrata_host.ports import free_ports
from kvstrata_host.rank import make_pools

KINDS = ("mha", "mla", *HYBRIDS)
PAGES = 3
"""How many pages a source holds of every pool; DSA's host pool has no more."""

RANK = HiCacheStorageConfig(
    tp_rank=0,
    tp_size=1,
    pp_rank=0,
    pp_size=1,
    attn_cp_rank=0,
    attn_cp_size=1,
    is_mla_model=False,
    enable_storage_metrics=False,
    is_page_first_layout=True,
    model_name="tiny",
)


PATIENT: dict[str, object] = {"operation_timeout_seconds": 30, "abandon_timeout_seconds": 60}
"""Settings for stores of one process, where a source may have to wait for the interpreter."""


def settings(**changes: object) -> dict[str, Any]:
    """Settings for a test, on free ports."""
    control_port, nixl_port = free_ports(2)
    return {
        "dram_bytes": "16MiB",
        "control_port": control_port,
        "nixl_port": nixl_port,
        "model_id": "tiny weights",
        "operation_timeout_seconds": 2,
        "abandon_timeout_seconds": 4,
        "trust_request_hints": True,
    } | changes


def page_hash(page: int) -> str:
    return hashlib.sha256(f"page {page}".encode()).hexdigest()


def contents(pool: str, page: int, size: int) -> bytes:
    """Random bytes that are the same for the same page of a pool in every process."""
    seed = int.from_bytes(hashlib.sha256(f"{pool} {page}".encode()).digest()[:8], "big")
    return np.random.default_rng(seed).bytes(size)


class Pages:
    """The pages of one host pool, by SGLang's own reading and writing of a page."""

    def __init__(self, name: str, pool: Any) -> None:
        self.name = name
        self.pool = pool
        self.page_bytes = pool.get_dummy_flat_data_page().nbytes
        self.count = pool.size // pool.page_size

    def slots(self, places: Sequence[int]) -> torch.Tensor:
        size = self.pool.page_size
        runs = [torch.arange(place * size, (place + 1) * size) for place in places]
        return torch.cat(runs) if runs else torch.tensor([], dtype=torch.int64)

    def write(self, place: int, data: bytes) -> None:
        if self.page_bytes:
            flat = self.pool.get_dummy_flat_data_page()
            values = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(flat.dtype)
            self.pool.set_from_flat_data_page(place * self.pool.page_size, values)

    def read(self, place: int) -> bytes:
        page = self.pool.get_data_page(place * self.pool.page_size, flat=True).contiguous()
        return bytes(page.view(torch.uint8).numpy().tobytes()) if self.page_bytes else b""

    def fill(self, places: Mapping[int, int]) -> None:
        for page, place in places.items():
            self.write(place, contents(self.name, page, self.page_bytes))

    def clear(self) -> None:
        for place in range(self.count):
            self.write(place, bytes(self.page_bytes))


class PlainReplica:
    """A started store on given host pools."""

    def __init__(
        self, pools: Mapping[str, Any], settings: Mapping[str, Any], **topology: Any
    ) -> None:
        self.pools = {name: Pages(name, pool) for name, pool in pools.items()}
        self.settings = dict(settings)
        config = {**vars(RANK), "extra_config": self.settings, **topology}
        self.store = KvcrStore(HiCacheStorageConfig(**config), "unused")
        for name, pool in pools.items():
            if name == "kv":
                self.store.register_mem_pool_host(pool)
            self.store.register_mem_host_pool_v2(pool, name)
        self.store.start()

    @property
    def runner(self) -> Runner:
        session = self.store._session
        if session is None:
            raise AssertionError("the store does not run")
        return session.runner

    @property
    def physical(self) -> list[Pages]:
        return [pages for pages in self.pools.values() if pages.page_bytes]

    def transfers(self, places: Mapping[int, int]) -> list[PoolTransfer]:
        """One transfer per pool, of these pages at these places of the pool."""
        hashes = [page_hash(page) for page in places]
        return [
            PoolTransfer(name, host_indices=pages.slots(list(places.values())), keys=hashes)
            for name, pages in self.pools.items()
        ]

    def back_up(self, pages: Sequence[int]) -> dict[str, list[bool]]:
        places = {page: at for at, page in enumerate(pages)}
        for pool in self.pools.values():
            pool.fill(places)
        results: dict[str, list[bool]] = self.store.batch_set_v2(self.transfers(places))
        return results

    def restore(self, pages: Sequence[int]) -> dict[str, list[bool]]:
        """Restore into reversed places of cleared memory; checks every byte of every place."""
        places = {page: PAGES - 1 - at for at, page in enumerate(pages)}
        for pool in self.pools.values():
            pool.clear()
        results: dict[str, list[bool]] = self.store.batch_get_v2(self.transfers(places))
        for name, pool in self.pools.items():
            wanted = dict.fromkeys(range(pool.count), bytes(pool.page_bytes))
            for page, filled in zip(pages, results[name], strict=True):
                if filled:
                    wanted[places[page]] = contents(name, page, pool.page_bytes)
            for place, data in wanted.items():
                if pool.read(place) != data:
                    raise AssertionError(f"{name} place {place} does not hold what it should")
        return results

    def hint(self, pages: Sequence[int]) -> Hint:
        hashes = frozenset(int(page_hash(page)[:16], 16) for page in pages)
        return Hint(Endpoint("127.0.0.1", self.settings["control_port"]), hashes)

    def close(self) -> None:
        self.store.close()


def pools_of(kind: str, layout: str) -> dict[str, Any]:
    """The host pools of a kind of model, the anchor first."""
    if kind in HYBRIDS:
        return make_hybrid(kind, layout)
    return {"kv": make_pools("mha" if kind == "mha" else "mla", layout)[1]}


def main() -> None:
    layout, *wanted = sys.argv[1:]
    replicas = []
    for entry in wanted:
        kind, control_port, nixl_port = entry.split(":")
        ports = {"control_port": int(control_port), "nixl_port": int(nixl_port)}
        replica = PlainReplica(pools_of(kind, layout), settings(**ports))
        replicas.append(replica)
        if not all(map(all, replica.back_up(range(PAGES)).values())):
            raise SystemExit(f"the source could not back up its {kind} pages")
    print("ready", flush=True)
    sys.stdin.readline()
    for replica in replicas:
        replica.close()


if __name__ == "__main__":
    main()
