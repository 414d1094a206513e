# SPDX-License-Identifier: Apache-2.0
"""TCP ports for servers that bind them only a minute later."""

import random
import socket
from pathlib import Path

_LOWEST = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_FIRST_EPHEMERAL = 32_768


def free_ports(count: int, *, run: int = 1) -> tuple[int, ...]:
    """Ports that are free on every interface; each starts a run of `run` such ports of its own.

    They lie below the range from which the system itself hands out ports: one of those would
    often be some connection's by the time a server has loaded and binds it.
    """
    chosen: list[int] = []
    end = max(_first_ephemeral(), _LOWEST + 10 * count * run)
    candidates = list(range(_LOWEST, end - run + 1, run))
    random.SystemRandom().shuffle(candidates)
    for port in candidates:
        if len(chosen) == count:
            break
        if all(_is_free(port + offset) for offset in range(run)):
            chosen.append(port)
    return tuple(chosen)


def _first_ephemeral() -> int:
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_FIRST_EPHEMERAL


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
