# SPDX-License-Identifier: Apache-2.0
"""One KVCR instance on the memory of one rank: how it is made, and what outlives its failure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvcr import KVCR, KVCRBindings
from kvcr.config import KVCRBackendConfigs, KVCRConfig, LocalDramOptions
from kvcr.control_channels import ZmqPeerControlChannel
from kvcr.types import BlockKey, InventoryEvent, PinRequestId, PinResult

from .dram import DramTier
from .errors import StartupError
from .keys import PageKeys
from .pools import HostPools

_retained: list[object] = []


def retain(*objects: object) -> None:
    """Keep memory that native code may still touch until the process ends."""
    _retained.extend(objects)


@dataclass(frozen=True)
class RunnerAddress:
    """Where one rank is reached."""

    agent: str
    bind_host: str
    advertise_host: str
    control_port: int
    nixl_port: int


@dataclass(frozen=True)
class Deadlines:
    """When KVCR cancels an operation, when it gives a cancelled one up, and how long its memory may
    take to become resident.
    """

    operation_seconds: float
    abandon_seconds: float
    startup_seconds: float = 300.0


class _NoFrameworkPages:
    """Declines every request to pin a host page: only KVCR's own DRAM is offered to peers."""

    def __init__(self) -> None:
        self._last = 0
        self._declined: list[tuple[PinRequestId, PinResult]] = []

    def request(self, keys: Iterable[BlockKey]) -> PinRequestId:
        del keys
        self._last += 1
        self._declined.append((PinRequestId(self._last), None))
        return PinRequestId(self._last)

    def poll(self) -> Iterable[tuple[PinRequestId, PinResult]]:
        declined, self._declined = self._declined, []
        return declined


def start_kvcr(
    address: RunnerAddress,
    pools: HostPools,
    dram: DramTier,
    deadlines: Deadlines,
    on_resilience_event: Callable[[Exception], None],
    on_inventory_event: Callable[[InventoryEvent], None],
) -> KVCR:
    """Start KVCR; raises StartupError, after which the memory is kept."""
    pins = _NoFrameworkPages()
    try:
        return KVCR(
            KVCRConfig(
                nixl_agent_name=address.agent,
                pool_layouts=list(pools.block_pools.items()),
                operation_timeout_ms=round(deadlines.operation_seconds * 1000),
                abandon_timeout_ms=round(deadlines.abandon_seconds * 1000),
                nixl_listen_port=address.nixl_port,
            ),
            KVCRBindings(
                request_pin=pins.request,
                poll_pin_results=pins.poll,
                release_pin=lambda handle: True,
                framework_control=ZmqPeerControlChannel(
                    address.bind_host, address.control_port, address.advertise_host
                ),
                key_adapter=PageKeys(),
                inventory_sink=on_inventory_event,
                on_resilience_event=on_resilience_event,
            ),
            KVCRBackendConfigs(
                framework_regions=pools.regions(),
                local_dram=LocalDramOptions(pools=dram.pools),
            ),
        )
    except Exception as error:  # KVCR raises what its progress thread met, of any type
        retain(dram)
        raise StartupError(f"KVCR did not start on {address}: {error}") from error
