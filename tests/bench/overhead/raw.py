# SPDX-License-Identifier: Apache-2.0
"""KVCR alone: its own calls on the same references, polled by the thread that waits."""

import time
from collections.abc import Iterable, Mapping
from types import TracebackType

from kvcr import KVCR, KVCRBindings
from kvcr.config import KVCRBackendConfigs, KVCRConfig, LocalDramOptions
from kvcr.control_channels import ZmqPeerControlChannel
from kvcr.types import BlockKey, MemoryRef, OpHandle, PinRequestId, PinResult

from kvstrata.kvcr.dram import DramTier
from kvstrata.kvcr.keys import PageKeys
from kvstrata.kvcr.layout import HostPages
from kvstrata_host.ports import free_ports

Blocks = Mapping[BlockKey, list[MemoryRef]]

AGENT = "raw"

# A loop without a pause takes the interpreter from KVCR's own thread and is slower.
_POLL_SECONDS = 0.0001


class RawError(RuntimeError):
    """KVCR did not do what it was asked for."""


class RawKvcr:
    """One KVCR instance on host pages; ``deposit`` and ``deliver`` return when all is done."""

    def __init__(self, pages: HostPages, dram_bytes: int) -> None:
        self._dram = DramTier(pages.dram_pools(dram_bytes))
        control_port, nixl_port = free_ports(2)
        self._kvcr = KVCR(
            KVCRConfig(
                nixl_agent_name=AGENT,
                pool_layouts=list(pages.block_pools.items()),
                operation_timeout_ms=30_000,
                abandon_timeout_ms=60_000,
                nixl_listen_port=nixl_port,
            ),
            KVCRBindings(
                request_pin=lambda keys: PinRequestId(0),
                poll_pin_results=_no_pins,
                release_pin=lambda handle: True,
                framework_control=ZmqPeerControlChannel("127.0.0.1", control_port, "127.0.0.1"),
                key_adapter=PageKeys(),
            ),
            KVCRBackendConfigs(
                framework_regions=pages.regions(),
                local_dram=LocalDramOptions(pools=self._dram.pools),
            ),
        )

    def __enter__(self) -> "RawKvcr":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kvcr.close()

    def deposit(self, blocks: Blocks) -> None:
        self._finish(self._kvcr.deposit(blocks), len(blocks))

    def deliver(self, blocks: Blocks) -> None:
        self._finish(self._kvcr.deliver(blocks, None), len(blocks))

    def _finish(self, wanted: OpHandle, count: int) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            for handle, results in self._kvcr.poll_completed():
                if handle != wanted:
                    continue
                if len(results) != count or not all(each.success for each in results.values()):
                    raise RawError(f"KVCR did not complete {count} pages: {results}")
                return


def _no_pins() -> Iterable[tuple[PinRequestId, PinResult]]:
    return ()
