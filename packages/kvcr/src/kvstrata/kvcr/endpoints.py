# SPDX-License-Identifier: Apache-2.0
"""Control endpoints of peers, and which of them a request may make this server connect to."""

import ipaddress
import re
from dataclasses import dataclass

# KVCR 0.1.1 listens on IPv4 alone.
_ENDPOINT = re.compile(r"tcp://([A-Za-z0-9.-]{1,253}):([0-9]{1,5})")

_FIRST_UNPRIVILEGED_PORT = 1024

_CLOUD_SERVICES = frozenset(
    map(ipaddress.IPv4Address, ("100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Where clouds offer metadata and credentials, beside 169.254.169.254, which is link-local."""


@dataclass(frozen=True)
class Endpoint:
    """Control endpoint of rank 0 of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Endpoint | None":
        """The endpoint written as ``tcp://host:port``, or None."""
        match = _ENDPOINT.fullmatch(text)
        if match is None or not 1 <= int(match[2]) <= 65535:
            return None
        return cls(match[1], int(match[2]))

    def of_rank(self, rank: int) -> "Endpoint":
        """The endpoint of another rank of the same server."""
        return Endpoint(self.host, self.port + rank)


@dataclass(frozen=True)
class EndpointPolicy:
    """Which endpoints a hint may name. A hint comes from a client, so it must not be a way to make
    this server connect to services that the client cannot reach itself.

    Args:
        allowed_peers: ``host`` or ``host:port`` of the sources, compared as text. If there are any,
            nothing else may be named. Otherwise an IPv4 address may be that can be a replica's.
        own_host: the host at which peers answer this server.
    """

    allowed_peers: tuple[str, ...] = ()
    own_host: str = ""

    def objection(self, source: Endpoint) -> str:
        """Why this source must not be asked, or an empty text if it may be."""
        if f"{source.host}:{source.port}" in self.allowed_peers:
            return ""
        if source.port < _FIRST_UNPRIVILEGED_PORT:
            return f"{source} has a privileged port, which only allowed_peers as host:port permits"
        if source.host in self.allowed_peers:
            return ""
        if self.allowed_peers:
            return f"{source} is not in allowed_peers"
        # Looking up a name that a client made up can hold a storage thread for many seconds.
        try:
            address = ipaddress.IPv4Address(source.host)
        except ValueError:
            return f"{source} is not an IPv4 address; a host name has to be in allowed_peers"
        kind = _kind(address)
        if kind:
            return f"{source} is {kind} address, which only allowed_peers permits"
        if address.is_loopback != is_loopback(self.own_host):
            return (
                f"{source} could not answer this server at {self.own_host!r}: only one of them is "
                "on loopback; allowed_peers permits it all the same"
            )
        return ""


def is_loopback(host: str) -> bool:
    """Whether a host is reached from itself alone; a name other than localhost is not."""
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _kind(address: ipaddress.IPv4Address) -> str:
    """What an address is that no replica has, or an empty text."""
    if address.is_link_local or address in _CLOUD_SERVICES:
        return "a link-local or cloud service"
    if address.is_multicast:
        return "a multicast"
    if int(address) >> 24 == 0:
        return "an unspecified"
    if address.is_reserved:
        return "a reserved or broadcast"
    return ""
