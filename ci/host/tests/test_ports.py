# SPDX-License-Identifier: Apache-2.0
import socket

from kvstrata_host.ports import free_ports


def test_ports_are_distinct_and_free() -> None:
    ports = free_ports(9)
    assert len(set(ports)) == 9
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
