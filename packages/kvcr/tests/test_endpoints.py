# SPDX-License-Identifier: Apache-2.0
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstrata.kvcr.endpoints import Endpoint, EndpointPolicy, is_loopback

ON_THE_NETWORK = EndpointPolicy(own_host="10.0.0.1")
ON_LOOPBACK = EndpointPolicy(own_host="127.0.0.1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.1.2.3:28500",
        "http://10.1.2.3:28500",
        "tcp://10.1.2.3",
        "tcp://10.1.2.3:0",
        "tcp://10.1.2.3:65536",
        "tcp://*:28500",
        "tcp://user@10.1.2.3:28500",
        "tcp://10.1.2.3:28500/path",
        "tcp://10.1.2.3:28500;tcp://10.9.9.9:1",
        "tcp://10.1.2.3:28500\n",
        "tcp://10.1.2.3:\u0663",
        "tcp://[fd00::1]:28500",
        "ipc:///tmp/socket",
    ],
)
def test_only_a_plain_tcp_endpoint_is_one(text: str) -> None:
    assert Endpoint.parse(text) is None


def test_an_endpoint_is_read_as_it_is_written() -> None:
    endpoint = Endpoint.parse("tcp://replica-a.local:28500")
    assert endpoint == Endpoint("replica-a.local", 28500)
    assert str(endpoint) == "tcp://replica-a.local:28500"


def test_ranks_listen_side_by_side() -> None:
    assert Endpoint("h", 28500).of_rank(3) == Endpoint("h", 28503)


@pytest.mark.parametrize("host", ["10.0.0.2", "172.16.5.4", "192.168.1.9", "100.64.0.1", "8.8.8.8"])
def test_an_address_that_a_replica_can_have_is_asked(host: str) -> None:
    assert ON_THE_NETWORK.objection(Endpoint(host, 28500)) == ""


UNFIT = [
    ("169.254.169.254", "link-local or cloud"),
    ("169.254.0.1", "link-local or cloud"),
    ("100.100.100.200", "link-local or cloud"),
    ("168.63.129.16", "link-local or cloud"),
    ("192.0.0.192", "link-local or cloud"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.255", "multicast"),
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("255.255.255.255", "broadcast"),
    ("240.0.0.1", "reserved"),
]


@pytest.mark.parametrize("policy", [ON_THE_NETWORK, ON_LOOPBACK, EndpointPolicy()])
@pytest.mark.parametrize(("host", "named"), UNFIT, ids=[host for host, _ in UNFIT])
def test_an_address_that_no_replica_has_is_refused_by_its_kind(
    host: str, named: str, policy: EndpointPolicy
) -> None:
    objection = policy.objection(Endpoint(host, 28500))
    assert named in objection
    assert "allowed_peers" in objection


@pytest.mark.parametrize("host", [host for host, _ in UNFIT] + ["127.0.0.1", "replica-b"])
def test_what_the_operator_lists_is_asked_whatever_it_is(host: str) -> None:
    for listed in (host, f"{host}:28500"):
        policy = EndpointPolicy((listed,), own_host="10.0.0.1")
        assert policy.objection(Endpoint(host, 28500)) == ""


def test_a_list_excludes_all_others() -> None:
    policy = EndpointPolicy(("10.0.0.2", "10.0.0.3:28500"), own_host="10.0.0.1")
    assert policy.objection(Endpoint("10.0.0.2", 40000)) == ""
    assert "not in allowed_peers" in policy.objection(Endpoint("10.0.0.3", 40000))
    assert "not in allowed_peers" in policy.objection(Endpoint("10.0.0.4", 28500))


def test_loopback_is_for_servers_that_peers_reach_on_loopback() -> None:
    peer = Endpoint("127.0.0.1", 28600)
    assert ON_LOOPBACK.objection(peer) == ""
    assert EndpointPolicy(own_host="localhost").objection(peer) == ""
    assert "loopback" in ON_THE_NETWORK.objection(peer)
    assert "loopback" in EndpointPolicy(own_host="replica-a").objection(peer)
    assert "loopback" in EndpointPolicy().objection(peer)


def test_a_server_on_loopback_asks_nobody_who_could_not_answer_it() -> None:
    assert "127.0.0.1" in ON_LOOPBACK.objection(Endpoint("10.0.0.2", 28500))


@pytest.mark.parametrize("port", [22, 80, 443, 1023])
def test_a_privileged_port_has_to_be_listed_itself(port: int) -> None:
    source = Endpoint("10.0.0.2", port)
    assert "privileged port" in ON_THE_NETWORK.objection(source)
    assert "privileged port" in EndpointPolicy(("10.0.0.2",)).objection(source)
    assert EndpointPolicy((f"10.0.0.2:{port}",)).objection(source) == ""


@pytest.mark.parametrize("host", ["replica-b", "localhost", "0x7f000001", "127.1", "010.0.0.2"])
def test_whatever_is_not_a_dotted_address_has_to_be_listed(host: str) -> None:
    for policy in (ON_THE_NETWORK, ON_LOOPBACK):
        assert "has to be in allowed_peers" in policy.objection(Endpoint(host, 28500))


@given(st.ip_addresses(v=4), st.integers(1, 65535))
def test_unlisted_addresses_are_asked_only_where_a_peer_can_be(
    address: ipaddress.IPv4Address, port: int
) -> None:
    if ON_THE_NETWORK.objection(Endpoint(str(address), port)) == "":
        assert port >= 1024
        assert not address.is_link_local
        assert not address.is_loopback
        assert not address.is_multicast
        assert not address.is_unspecified
        assert not address.is_reserved


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_loopback_is_known_by_address_or_name(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
