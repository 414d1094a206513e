# SPDX-License-Identifier: Apache-2.0
"""One copy of replicated pages: who backs up, who restores from whom, and what is refused."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from sglang.srt.runtime_context import get_context

from kvstrata.kvcr import ConfigError
from kvstrata.kvcr.endpoints import Endpoint
from kvstrata.kvcr.hints import Hint, carrying
from kvstrata_host.kvcr.replica import PATIENT, PlainReplica, page_hash, pools_of, settings
from kvstrata_host.kvcr.trees import TreeRank
from kvstrata_host.ports import free_ports

from .ways import switches, ways_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ALL = range(3)
YES, NO = [True] * 3, [False] * 3


@contextmanager
def server(
    kind: str, size: int = 2, tuning: Mapping[str, object] | None = None, **changes: Any
) -> Iterator[list[PlainReplica]]:
    """The ranks of a server, each a store on host pools of its own."""
    control_port, nixl_port = free_ports(2, run=size)
    ports = {"control_port": control_port, "nixl_port": nixl_port}
    chosen = settings(**ports, **PATIENT, tuning=tuning or {"shared_mla": True}, **changes)
    ranks: list[PlainReplica] = []
    try:
        for rank in range(size):
            where = {"tp_rank": rank, "tp_size": size, "is_mla_model": True}
            ranks.append(PlainReplica(pools_of(kind, "page_first"), chosen, **where))
        yield ranks
    finally:
        for each in ranks:
            each.close()


def results(rank: PlainReplica, expected: Sequence[bool]) -> dict[str, list[bool]]:
    return {pool: list(expected) for pool in rank.pools}


@pytest.mark.parametrize("tuning", [{"shared_mla": True}, switches()], ids=["alone", "with-all"])
@pytest.mark.parametrize("mode", ["direct", "staged"])
@pytest.mark.parametrize("kind", ["mla", "indexer"])
def test_the_other_ranks_restore_what_rank_0_has_backed_up(
    kind: str, mode: str, tuning: dict[str, object]
) -> None:
    with server(kind, size=3, tuning=tuning, peer_restore_mode=mode) as (keeper, *others):
        assert keeper.back_up(ALL) == results(keeper, YES)
        for rank in (keeper, *others):
            assert rank.restore(ALL) == results(rank, YES)
            assert rank.restore([0, 99]) == results(rank, [True, False])
        session: Any = keeper.store._session
        for rank in others if mode == "direct" else ():
            assert not any(map(rank.runner.held, session.namespaces.values()))


def test_without_the_option_a_rank_has_what_it_has_backed_up_itself() -> None:
    with server("mla", tuning={"combined_io": True}) as (keeper, other):
        keeper.back_up(ALL)
        assert other.restore(ALL) == results(other, NO)


def test_only_rank_0_has_a_tier_to_speak_of() -> None:
    with server("mla") as (keeper, other):
        assert keeper.runner.tier_pages["kv"] > 100
        assert other.runner.tier_pages["kv"] == 1
    with server("mla", peer_restore_mode="staged") as (keeper, other):
        assert other.runner.tier_pages == keeper.runner.tier_pages


def test_rank_0_alone_says_what_may_be_restored() -> None:
    with server("mla") as (keeper, other):
        hashes = [page_hash(page) for page in ALL]
        assert keeper.store.batch_exists(hashes) == 0
        assert other.store.batch_exists(hashes) == 3
        keeper.back_up([0, 1])
        assert keeper.store.batch_exists(hashes) == 2


@pytest.mark.parametrize("source_shares", [True, False])
def test_all_ranks_restore_what_rank_0_of_a_peer_has(source_shares: bool) -> None:
    tuning = {"shared_mla": True} if source_shares else {"combined_io": True}
    with server("mla", tuning=tuning) as (source, _), server("mla") as ranks:
        source.back_up(ALL)
        for rank in ranks:
            assert rank.restore(ALL) == results(rank, NO)
            with carrying(source.hint(ALL)):
                assert rank.restore(ALL) == results(rank, YES)


def test_pages_come_from_rank_0_and_from_a_peer_in_one_call() -> None:
    with server("mla") as (source, _), server("mla") as (keeper, other):
        source.back_up([2])
        keeper.back_up([0, 1])
        with carrying(source.hint([2])):
            for rank in (keeper, other):
                assert rank.restore(ALL) == results(rank, YES)


def test_a_hint_to_nobody_costs_no_rank_its_own_pages() -> None:
    with server("mla") as (keeper, other):
        keeper.back_up(ALL)
        (port,) = free_ports(1)
        nobody = Hint(Endpoint("127.0.0.1", port), keeper.hint(ALL).hashes)
        with carrying(nobody):
            assert other.restore(ALL) == results(other, YES)


@pytest.mark.parametrize("shares", [True, False])
def test_the_other_ranks_back_up_nothing(shares: bool) -> None:
    rank = TreeRank("dsa")
    assert rank.attach() == ""
    try:
        config = {"shared_mla": shares, "combined_io": True}
        rank.shelf.ways = ways_of(config, tp_rank=1, tp_size=2, is_mla_model=True)
        tokens = rank.tokens(2)
        rank.controller.write_storage(torch.arange(len(tokens)), tokens, rank.hashes(tokens), None)
        done = rank.controller.ack_backup_queue.get(timeout=20)
        assert done.completed_tokens == (0 if shares else len(tokens))
        assert rank.shelf.calls.count("batch_set_v1") == (0 if shares else 1)
    finally:
        rank.close()


# What is refused, by name.


@pytest.mark.parametrize(
    ("topology", "named"),
    [
        ({"is_mla_model": False}, "replicated KV"),
        ({"attn_cp_size": 2}, "--attn-cp-size is 2"),
        ({"pp_size": 2}, "--pp-size"),
    ],
)
def test_a_topology_whose_ranks_may_differ_is_refused(topology: dict[str, Any], named: str) -> None:
    fitting = {"is_mla_model": True, "tp_size": 2}
    assert ways_of({"shared_mla": True}, **fitting).shared_pages
    with pytest.raises(ConfigError, match=named):
        ways_of({"shared_mla": True}, **(fitting | topology))


def test_ranks_on_several_hosts_are_refused() -> None:
    override = get_context().override_server_args(nnodes=2)
    override.install()
    try:
        with pytest.raises(ConfigError, match="--nnodes is 2"):
            ways_of({"shared_mla": True}, is_mla_model=True, tp_size=2)
    finally:
        override.restore()


@pytest.mark.parametrize(("kind", "pool"), [("swa", "swa"), ("mamba", "mamba"), ("v4", "kv")])
def test_a_pool_that_may_differ_between_ranks_is_refused(kind: str, pool: str) -> None:
    with pytest.raises(ConfigError, match=f"the same {pool}") as error, server(kind):
        pass
    assert error.value.setting == "tuning.shared_mla"


def test_one_rank_alone_has_nothing_to_share() -> None:
    ways = ways_of({"shared_mla": True}, is_mla_model=True)
    assert not ways.shared_pages
    assert ways.keeps_pages
