# SPDX-License-Identifier: Apache-2.0
"""What NIXL finds on this machine: the transports of its own UCX, and how fast memory registers.

Run as ``python -m kvstrata.kvcr.transports``, which prints a `NixlView` as JSON: NIXL and UCX take
their settings from the environment once per process.
"""

import ctypes
import re
import sys
import time
from pathlib import Path

import msgspec

from .dram import DramTier

_SAMPLE_BYTES = 256 << 20


class NixlView(msgspec.Struct, frozen=True):
    """`transports` counts the devices of each UCX component; empty where that is not known."""

    agent_seconds: float
    transports: dict[str, int]
    sample_bytes: int
    resident_seconds: float
    registration_seconds: float


class _ComponentAttributes(ctypes.Structure):
    """The head of UCX's ``uct_component_attr_t``, with room for the rest."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 16),
        ("device_count", ctypes.c_uint),
        ("rest", ctypes.c_char * 4096),
    )


_NAME_AND_DEVICE_COUNT = 0b11


def _transports() -> dict[str, int]:
    """Asks the UCX that NIXL has loaded into this process, which no API of NIXL tells."""
    loaded = re.search(r"/\S*/libuct[-.]\S*", Path("/proc/self/maps").read_text())
    if loaded is None:
        return {}
    uct = ctypes.CDLL(loaded[0])
    components, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint()
    if uct.uct_query_components(ctypes.byref(components), ctypes.byref(count)) != 0:
        return {}
    found: dict[str, int] = {}
    for component in components[: count.value]:
        attributes = _ComponentAttributes(field_mask=_NAME_AND_DEVICE_COUNT)
        if uct.uct_component_query(ctypes.c_void_p(component), ctypes.byref(attributes)) == 0:
            found[attributes.name.decode()] = attributes.device_count
    return found


def look() -> NixlView:
    """Make a NIXL agent and register a sample of memory; raises what NIXL raises."""
    from nixl._api import nixl_agent, nixl_agent_config

    started = time.monotonic()
    config = nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
    agent = nixl_agent("doctor", config)
    agent_seconds = time.monotonic() - started
    started = time.monotonic()
    tier = DramTier({"sample": _SAMPLE_BYTES})
    resident_seconds = time.monotonic() - started
    _, address, size = tier.pools[0]
    started = time.monotonic()
    registered = agent.register_memory([(address, size, 0, "")], "DRAM")
    registration_seconds = time.monotonic() - started
    agent.deregister_memory(registered)
    return NixlView(agent_seconds, _transports(), size, resident_seconds, registration_seconds)


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(look()).decode() + "\n")
