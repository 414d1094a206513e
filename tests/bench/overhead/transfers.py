# SPDX-License-Identifier: Apache-2.0
"""A page's way through the store against its way through KVCR alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from hicache import HostMemory, page_hashes, storage_config
from kvcr.types import BlockKey, MemoryRef
from paired import Ratio, in_turn, seconds
from raw_kvcr import RawKvcr

from kvstrata.kvcr.keys import page_keys
from kvstrata.kvcr.layout import HostPages
from kvstrata.kvcr.pools import HostPools
from kvstrata.kvcr.store import KvcrStore
from kvstrata_host.ports import free_ports

PAGES = 64
PAGE_BYTES = 256 << 10
WRITTEN, READ = 0, PAGES
"""Host pages that are backed up, and those that are restored into: the first of each."""

HOST_PAGES = 2 * PAGES
_DRAM_BYTES = 4 * PAGES * PAGE_BYTES
_LIMIT = 1.1
_PEER = "KVCR alone"


class TransferError(RuntimeError):
    """The bytes that came back are not those that were written."""


@contextmanager
def running_store(memory: HostMemory) -> Iterator[KvcrStore]:
    """A store on a host pool, started."""
    control_port, nixl_port = free_ports(2)
    config = storage_config(
        {
            "dram_bytes": _DRAM_BYTES,
            "control_port": control_port,
            "nixl_port": nixl_port,
            "model_id": "bench",
        }
    )
    store = KvcrStore(config, "unused")
    store.register_mem_pool_host(memory.pool)
    store.start()
    try:
        yield store
    finally:
        store.close()


def measure(memory: HostMemory, rounds: int) -> tuple[Ratio, Ratio]:
    """Backup and local restore of PAGES pages, each with new keys in every round.

    Both sides begin with SGLang's page hashes, and the store also with its indices.

    Raises TransferError unless the bytes restored last are those written.
    """
    pages = HostPages.of("kv", memory.pool)
    source, target = memory.indices(WRITTEN, PAGES), memory.indices(READ, PAGES)
    pools = HostPools.of([pages])
    with running_store(memory) as store, RawKvcr(pools, _DRAM_BYTES) as raw:

        def blocks(hashes: Sequence[str], first: int) -> dict[BlockKey, list[MemoryRef]]:
            """What KVCR has to be told of the pages; nobody has it beforehand."""
            keys = page_keys(hashes, b"raw")
            return {key: pages.references(raw.agent, first + at) for at, key in enumerate(keys)}

        def back_up(number: int) -> float:
            hashes = page_hashes(number, PAGES)
            return seconds(lambda: _all(store.batch_set_v1(hashes, source)))

        def restore(number: int) -> float:
            hashes = page_hashes(number, PAGES)
            return seconds(lambda: _all(store.batch_get_v1(hashes, target)))

        def deposit(number: int) -> float:
            hashes = page_hashes(number, PAGES)
            return seconds(lambda: raw.deposit(blocks(hashes, WRITTEN)))

        def deliver(number: int) -> float:
            hashes = page_hashes(number, PAGES)
            return seconds(lambda: raw.deliver(blocks(hashes, READ)))

        for number in range(-3, 0):
            for warm in (back_up, deposit, restore, deliver):
                warm(number)
        backups = in_turn(rounds, back_up, deposit)
        last = rounds - 1
        restores = in_turn(rounds, lambda _: restore(last), lambda _: deliver(last))
        for fill in (restore, deliver):
            memory.page_contents(READ, PAGES).zero_()
            fill(last)
            if not torch.equal(
                memory.page_contents(READ, PAGES), memory.page_contents(WRITTEN, PAGES)
            ):
                raise TransferError(f"{fill.__name__} did not bring back what was written")
    size = f"{PAGES} pages of {PAGE_BYTES >> 10} KiB"
    return (
        Ratio(f"backup of {size}", *backups, peer=_PEER, limit=_LIMIT),
        Ratio(f"local restore of {size}", *restores, peer=_PEER, limit=_LIMIT),
    )


def _all(results: Sequence[bool]) -> None:
    if not all(results):
        raise TransferError(f"{results.count(False)} of {len(results)} pages failed")
