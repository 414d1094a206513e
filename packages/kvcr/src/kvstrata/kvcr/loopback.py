# SPDX-License-Identifier: Apache-2.0
"""A restore from peer to peer on this machine, with real KVCR in two processes.

Run as ``python -m kvstrata.kvcr.loopback source|target HOST CONTROL_PORT NIXL_PORT [SOURCE_PORT]``.
The source says ``ready`` and serves until its input ends. The target prints a `RoundTrip` as JSON.
"""

import hashlib
import os
import sys
import time

import msgspec
import numpy as np
import numpy.typing as npt
from kvcr.types import BlockKey, MemoryRef

from . import nixl_thread
from .activation import activate
from .endpoints import Endpoint
from .hints import Hint
from .instance import Deadlines, RunnerAddress
from .keys import event_hash
from .layout import Component, HostPages
from .peers import PeerProbe
from .pools import HostPools
from .runner import Runner

_PAGES = 32
_PAGE_BYTES = 256 << 10

Bytes = npt.NDArray[np.uint8]


class RoundTrip(msgspec.Struct, frozen=True):
    """What came of restoring pages from a peer; wrong pages arrived with other bytes."""

    pages: int
    restored: int
    wrong: int
    page_bytes: int
    seconds: float


def _key(page: int) -> BlockKey:
    return BlockKey(hashlib.sha256(f"page {page}".encode()).digest() + bytes(16))


def _contents(page: int) -> Bytes:
    return np.random.default_rng(page).integers(0, 256, _PAGE_BYTES, dtype=np.uint8)


def _start(memory: Bytes, host: str, control_port: int, nixl_port: int) -> Runner:
    activate(nixl_thread.SEAMS)
    address = int(memory.ctypes.data)
    component = Component.named("kv", address, _PAGE_BYTES, _PAGE_BYTES, _PAGES)
    return Runner(
        RunnerAddress(f"doctor-{os.getpid()}", host, host, control_port, nixl_port),
        HostPools.of([HostPages("kv", 1, _PAGES, (component,))]),
        dram_bytes=_PAGES * _PAGE_BYTES,
        deadlines=Deadlines(operation_seconds=10, abandon_seconds=20),
        is_gone=PeerProbe(timeout_seconds=1).is_gone,
        end_worker=sys.exit,
    )


def _blocks(runner: Runner) -> dict[BlockKey, list[MemoryRef]]:
    pages, agent = runner.pools.named("kv"), runner.address.agent
    return {_key(page): pages.references(agent, page) for page in range(_PAGES)}


def _serve(host: str, control_port: int, nixl_port: int) -> None:
    memory = np.stack([_contents(page) for page in range(_PAGES)])
    runner = _start(memory, host, control_port, nixl_port)
    if not all(runner.deposit(_blocks(runner))):
        raise SystemExit("the source could not keep its own pages")
    print("ready", flush=True)
    sys.stdin.readline()
    runner.close()


def _restore(host: str, control_port: int, nixl_port: int, source_port: int) -> RoundTrip:
    memory = np.zeros((_PAGES, _PAGE_BYTES), dtype=np.uint8)
    runner = _start(memory, host, control_port, nixl_port)
    blocks = _blocks(runner)
    hint = Hint(Endpoint(host, source_port), frozenset(map(event_hash, blocks)))
    started = time.monotonic()
    restored = runner.deliver(blocks, hint)
    seconds = time.monotonic() - started
    wrong = sum(
        filled and not np.array_equal(memory[page], _contents(page))
        for page, filled in enumerate(restored)
    )
    runner.close()
    return RoundTrip(_PAGES, sum(restored), wrong, _PAGE_BYTES, seconds)


def main(arguments: list[str]) -> None:
    role, host, *ports = arguments
    if role == "source":
        _serve(host, *map(int, ports))
    else:
        print(msgspec.json.encode(_restore(host, *map(int, ports))).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
