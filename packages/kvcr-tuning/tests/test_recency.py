# SPDX-License-Identifier: Apache-2.0
"""Which pages a full DRAM tier drops first, by what is left of them in the real KVCR."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolTransfer

from kvstrata.kvcr.session import Peer
from kvstrata_host.kvcr.replica import PAGES, PATIENT, PlainReplica, page_hash, pools_of, settings

from .ways import switches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TIER_PAGES = 6
CHECKSUM_BYTES = 4
ALIGNED = {"align_recency": True}
ALL = switches("shared_mla")


class Replica(PlainReplica):
    """A store with room for TIER_PAGES pages of each pool."""

    def __init__(self, tuning: Mapping[str, object], *, kind: str = "mha") -> None:
        pools = pools_of(kind, "page_first")
        page_bytes = sum(pool.get_dummy_flat_data_page().nbytes for pool in pools.values())
        page_bytes += CHECKSUM_BYTES * len(pools) if "verify_bytes" in tuning else 0
        super().__init__(
            pools, settings(**PATIENT, dram_bytes=TIER_PAGES * page_bytes, tuning=tuning)
        )
        assert set(self.runner.tier_pages.values()) == {TIER_PAGES}

    def call(self, name: str, pages: Sequence[int], prefix: Sequence[int]) -> list[bool]:
        """A read or a write of some pages after others; whether each succeeded in every pool."""
        places = {page: at % PAGES for at, page in enumerate(pages)}
        info = HiCacheStorageExtraInfo(prefix_keys=[page_hash(page) for page in prefix])
        results = getattr(self.store, name)(self.transfers(places), extra_info=info)
        return [all(each) for each in zip(*results.values(), strict=True)]

    def deposit(self, pages: Sequence[int], prefix: Sequence[int] = ()) -> list[bool]:
        done: list[bool] = []
        for at in range(0, len(pages), PAGES):
            now = pages[at : at + PAGES]
            done += self.call("batch_set_v2", now, [*prefix, *pages[:at]])
        return done

    def get(self, pages: Sequence[int], prefix: Sequence[int] = ()) -> list[bool]:
        return self.call("batch_get_v2", pages, prefix)

    def held(self, pages: Sequence[int], pool: str = "kv") -> list[int]:
        session: Any = self.store._session
        hashes = [page_hash(page) for page in pages]
        found = session.presence([pool], hashes, Peer())[pool]
        return [page for page, is_held in zip(pages, found, strict=True) if is_held]


@pytest.fixture(params=[ALIGNED, ALL, {}], ids=["aligned", "with-all-options", "not-aligned"])
def replica(request: pytest.FixtureRequest) -> Iterator[Replica]:
    made = Replica(request.param)
    yield made
    made.close()


def is_aligned(replica: Replica) -> bool:
    return "align_recency" in replica.settings["tuning"]


def test_the_tail_of_a_prefix_is_dropped_before_its_head(replica: Replica) -> None:
    assert all(replica.deposit(range(3)))
    assert all(replica.deposit([3, 4], prefix=range(3)))
    assert all(replica.deposit([10, 11, 12]))
    # Without alignment the head goes, and what is left of the prefix is of no use.
    assert replica.held(range(5)) == ([0, 1, 2] if is_aligned(replica) else [2, 3, 4])


def test_the_use_of_a_tail_keeps_its_head(replica: Replica) -> None:
    assert all(replica.deposit(range(3)))
    assert all(replica.deposit([10, 11, 12]))
    assert replica.get([2], prefix=[0, 1]) == [True]
    assert all(replica.deposit([20, 21, 22]))
    assert replica.held(range(3)) == ([0, 1, 2] if is_aligned(replica) else [2])


def test_a_prefix_that_does_not_fit_keeps_its_head_and_reports_the_rest(replica: Replica) -> None:
    done = replica.deposit(range(9))
    if is_aligned(replica):
        assert done == [True] * TIER_PAGES + [False] * 3
        assert replica.held(range(9)) == list(range(TIER_PAGES))
    else:
        assert replica.held(range(9)) == list(range(3, 9))


def test_no_claim_outlives_a_call(replica: Replica) -> None:
    replica.deposit(range(9))
    assert all(replica.deposit(range(20, 26)))
    assert replica.held(range(20, 26)) == list(range(20, 26))


def test_every_pool_of_a_page_ages_with_it() -> None:
    replica = Replica(ALIGNED, kind="indexer")
    try:
        kv, indexer = ("kv", "indexer")

        def put(pool: str, pages: Sequence[int], prefix: Sequence[int] = ()) -> None:
            places = {page: at for at, page in enumerate(pages)}
            (transfer,) = [t for t in replica.transfers(places) if t.name == pool]
            info = HiCacheStorageExtraInfo(prefix_keys=[page_hash(page) for page in prefix])
            assert all(replica.store.batch_set_v2([transfer], extra_info=info)[pool])

        for pool in (indexer, kv):
            put(pool, [0, 1, 2])
        for pool in (indexer, kv):
            put(pool, [10, 11, 12])
        transfer = PoolTransfer(kv, keys=[page_hash(2)], host_indices=replica.pools[kv].slots([0]))
        info = HiCacheStorageExtraInfo(prefix_keys=[page_hash(0), page_hash(1)])
        assert replica.store.batch_get_v2([transfer], extra_info=info) == {kv: [True]}
        put(indexer, [20, 21, 22])
        assert replica.held([0, 1, 2], indexer) == [0, 1, 2]
        assert replica.held([10, 11, 12], indexer) == []
    finally:
        replica.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_page_is_held_only_with_all_pages_before_it_whatever_is_used(seed: int) -> None:
    assert orphans(seed, ALIGNED if seed else ALL) == 0


def test_without_alignment_there_are_tails_without_heads() -> None:
    assert orphans(0, {}) > 0


def path_to(page: int, parents: Mapping[int, int | None]) -> list[int]:
    parent = parents[page]
    return [page] if parent is None else [*path_to(parent, parents), page]


def orphans(seed: int, tuning: Mapping[str, object]) -> int:
    """How many pages were seen held without one before them, over random uses of a tree."""
    chance = random.Random(seed)
    replica = Replica(tuning)
    parents: dict[int, int | None] = {0: None}
    for page in range(1, 24):
        parents[page] = chance.choice([None, *parents])
    seen = 0
    try:
        for _ in range(120):
            path = path_to(chance.randrange(len(parents)), parents)
            held = replica.held(path)
            if held == path:
                cut = chance.randrange(len(path))
                replica.get(path[cut:][:PAGES], prefix=path[:cut])
            else:
                # SGLang backs up a page once those before it were.
                new = next(at for at, each in enumerate(path) if each not in held)
                replica.deposit(path[new:], prefix=path[:new])
            alive = set(replica.held(list(parents)))
            seen += sum(parents[each] not in {None, *alive} for each in alive)
    finally:
        replica.close()
    return seen
