# SPDX-License-Identifier: Apache-2.0
import socket

from kvstrata_host.ports import free_ports


def test_ports_are_distinct_and_free() -> None:
    ports = free_ports(9)
    assert len(set(ports)) == 9
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_run_is_free_to_its_end_and_overlaps_no_other() -> None:
    first, second = free_ports(2, run=3)
    assert not {first, first + 1, first + 2} & {second, second + 1, second + 2}
    for port in (first, first + 1, first + 2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
