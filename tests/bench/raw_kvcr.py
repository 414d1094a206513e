# SPDX-License-Identifier: Apache-2.0
"""KVCR alone: its own calls on the same references, polled by the thread that waits."""

import time
from collections.abc import Iterable, Mapping
from types import TracebackType

from kvcr.types import BlockKey, MemoryRef, OpHandle, QueryStatus

from kvstrata.kvcr.dram import DramTier
from kvstrata.kvcr.hints import Hint
from kvstrata.kvcr.instance import Deadlines, RunnerAddress, start_kvcr
from kvstrata.kvcr.keys import event_hash
from kvstrata.kvcr.pools import HostPools
from kvstrata_host.ports import free_ports

Blocks = Mapping[BlockKey, list[MemoryRef]]

DEADLINES = Deadlines(operation_seconds=300, abandon_seconds=600)
"""A KVCR that was stopped for as long as an operation may take serves no peer any more, and while
contenders take turns each is stopped for most of the time."""

# A loop without a pause takes the interpreter from KVCR's own thread and is slower.
_POLL_SECONDS = 0.0001


class RawError(RuntimeError):
    """KVCR did not do what it was asked for."""


class RawKvcr:
    """One KVCR instance on host pages; ``deposit`` and ``deliver`` return when all is done."""

    def __init__(self, pools: HostPools, dram_bytes: int, *, agent: str = "raw") -> None:
        self.agent = agent
        self.control_port, nixl_port = free_ports(2)
        self._requests = 0
        self._dram = DramTier(pools.tier_bytes(dram_bytes))
        self._kvcr = start_kvcr(
            RunnerAddress(agent, "127.0.0.1", "127.0.0.1", self.control_port, nixl_port),
            pools,
            self._dram,
            DEADLINES,
            lambda event: None,
            lambda event: None,
        )

    def __enter__(self) -> "RawKvcr":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._kvcr.close()

    def deposit(self, blocks: Blocks) -> None:
        self._finish(self._kvcr.deposit(blocks), len(blocks))

    def deliver(self, blocks: Blocks, hint: Hint | None = None) -> None:
        """Fill host pages from own DRAM, or from the hint's source."""
        name = self._submit(hint, blocks)
        self._finish(self._kvcr.deliver(blocks, name), len(blocks))
        self._discard(name)

    def query(self, keys: list[BlockKey], hint: Hint | None = None) -> int:
        """How many of the pages are in own DRAM, or said to be at the hint's source."""
        name = self._submit(hint, keys)
        found = self._kvcr.query(keys, name)
        self._discard(name)
        return sum(status is not QueryStatus.MISS for status, _ in found)

    def serve(self) -> None:
        """Do what peers wait for."""
        self._kvcr.poll_completed()

    def _submit(self, hint: Hint | None, keys: Iterable[BlockKey]) -> str | None:
        if hint is None:
            return None
        self._requests += 1
        name = f"{self.agent}/{self._requests}"
        self._kvcr.submit_hint(hint.fetch_message(map(event_hash, keys)), name)
        return name

    def _discard(self, name: str | None) -> None:
        if name is not None:
            self._kvcr.discard_hint(name)

    def _finish(self, wanted: OpHandle, count: int) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            for handle, results in self._kvcr.poll_completed():
                if handle != wanted:
                    continue
                if len(results) != count or not all(each.success for each in results.values()):
                    raise RawError(f"KVCR did not complete {count} pages: {results}")
                return
