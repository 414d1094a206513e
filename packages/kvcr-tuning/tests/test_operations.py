# SPDX-License-Identifier: Apache-2.0
"""What one read and one backup hold: results per pool, and as many acknowledgements on every rank.

SGLang's trees, pools and controllers are real; the store is a shelf that can answer wrongly.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import (
    STORAGE_BATCH_SIZE,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)

from kvstrata.kvcr import ConfigError, hooks
from kvstrata_host.kvcr.shelf import BAD_DICTS, BAD_RESULTS, PAGES_KV, Fault, raising
from kvstrata_host.kvcr.trees import Kind, TreeRank, attached, ranks

from .ways import ways_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PAGES = 5
COMBINED = {"combined_io": True}
TOGETHER = {PAGES_KV, "indexer"}


def tune(rank: TreeRank, options: Mapping[str, object]) -> TreeRank:
    rank.shelf.ways = ways_of(options)
    return rank


@pytest.fixture
def dsa() -> Iterator[TreeRank]:
    with attached("dsa") as rank:
        yield tune(rank, COMBINED)


def restore(rank: TreeRank, rid: str = "request", pages: int = PAGES) -> int:
    """How many pages a prefetch brings."""
    return rank.restored(rank.prefetch(rank.tokens(pages), rid)) // rank.page_tokens


def lose(pool: str, *positions: int) -> Fault:
    """A fault: in one pool, the pages at these positions were not had."""

    def change(answer: Any) -> Any:
        kept = [had and at not in positions for at, had in enumerate(answer[pool])]
        return {**answer, pool: kept}

    return change


def watch(seen: list[set[str]]) -> Fault:
    """No fault: notes the pools of a call."""

    def look(answer: Any) -> Any:
        seen.append(set(answer))
        return answer

    return look


# Combined reads


def settles(rank: TreeRank, pages: int, fault: Fault) -> None:
    """A prefetch with a fault brings this many pages; then everything works as before it."""
    rank.store(rank.tokens(PAGES))
    free = rank.free_slots()
    rank.shelf.faults["batch_get_v2"] = fault
    assert restore(rank) == pages
    assert free[PAGES_KV] - rank.free_slots()[PAGES_KV] == pages * rank.page_tokens
    rank.shelf.faults.clear()
    assert restore(rank, "next") == PAGES - pages
    assert rank.threads_are_alive()
    rank.tree.evict_host(PAGES * rank.page_tokens)
    assert rank.free_slots() == free


def test_kv_and_its_indexer_are_read_in_one_call(dsa: TreeRank) -> None:
    calls: list[set[str]] = []
    settles(dsa, PAGES, watch(calls))
    assert calls == [TOGETHER]
    assert "batch_get_v1" not in dsa.shelf.calls


@pytest.mark.parametrize("pool", sorted(TOGETHER))
@pytest.mark.parametrize("missing", [0, 2, PAGES - 1])
def test_a_read_ends_before_the_first_page_that_one_pool_lacks(
    dsa: TreeRank, pool: str, missing: int
) -> None:
    settles(dsa, missing, lose(pool, missing))


@pytest.mark.parametrize("fault", BAD_DICTS.values(), ids=BAD_DICTS)
def test_a_wrong_result_of_a_combined_read_is_no_page_and_frees_every_slot_once(
    dsa: TreeRank, fault: Fault
) -> None:
    settles(dsa, 0, fault)


def test_pools_with_indices_of_their_own_are_still_read_last() -> None:
    calls: list[set[str]] = []
    with attached("swa") as rank:
        tune(rank, COMBINED)
        settles(rank, PAGES, watch(calls))
        assert calls == [{"swa"}]
        assert "batch_get_v1" in rank.shelf.calls


def test_only_pools_that_every_page_of_a_prefix_needs_join_kv() -> None:
    ways = ways_of(COMBINED)
    indexer = PoolTransfer(name=PoolName.INDEXER, indices_from_pool=PoolName.KV)
    window = PoolTransfer(
        name=PoolName.SWA,
        indices_from_pool=PoolName.KV,
        hit_policy=PoolHitPolicy.TRAILING_PAGES,
    )
    derived = PoolTransfer(name=PoolName.DRAFT_SWA, indices_from_pool=PoolName.SWA)
    assert [ways.joins_kv(each) for each in (indexer, window, derived)] == [True, False, False]


# Combined backups


def indexer() -> list[PoolTransfer]:
    return [PoolTransfer(name=PoolName.INDEXER, indices_from_pool=PoolName.KV)]


def backed_up(rank: TreeRank, pages: int = PAGES, other: list[PoolTransfer] | None = None) -> Any:
    tokens = rank.tokens(pages)
    indices = torch.arange(len(tokens))
    rank.controller.write_storage(indices, tokens, rank.hashes(tokens), None, extra_pools=other)
    return rank.controller.ack_backup_queue.get(timeout=20)


def claimed(rank: TreeRank, pages: int = PAGES) -> int:
    return int(backed_up(rank, pages, indexer()).completed_tokens) // rank.page_tokens


def test_kv_and_its_indexer_are_backed_up_in_one_call(dsa: TreeRank) -> None:
    calls: list[set[str]] = []
    dsa.shelf.faults["batch_set_v2"] = watch(calls)
    operation = backed_up(dsa, other=indexer())
    assert operation.completed_tokens == PAGES * dsa.page_tokens
    assert calls == [TOGETHER]
    assert "batch_set_v1" not in dsa.shelf.calls
    held = set(dsa.hashes(dsa.tokens(PAGES)))
    assert dsa.shelf.held == {PAGES_KV: held, "indexer": held}
    assert operation.pool_storage_result.extra_pool_hit_pages == {"indexer": PAGES}


@pytest.mark.parametrize("pool", sorted(TOGETHER))
@pytest.mark.parametrize("missing", [0, 2, PAGES - 1])
def test_pages_are_claimed_up_to_the_first_that_one_pool_lacks(
    dsa: TreeRank, pool: str, missing: int
) -> None:
    dsa.shelf.faults["batch_set_v2"] = lose(pool, missing)
    operation = backed_up(dsa, other=indexer())
    assert operation.completed_tokens == missing * dsa.page_tokens
    hits = operation.pool_storage_result.extra_pool_hit_pages["indexer"]
    assert hits == (missing if pool == "indexer" else PAGES)


@pytest.mark.parametrize("fault", BAD_DICTS.values(), ids=BAD_DICTS)
def test_a_wrong_result_of_a_combined_backup_claims_no_page(dsa: TreeRank, fault: Fault) -> None:
    dsa.shelf.faults["batch_set_v2"] = fault
    assert claimed(dsa) == 0
    dsa.shelf.faults.clear()
    assert claimed(dsa) == PAGES
    assert dsa.threads_are_alive()


def test_a_combined_batch_that_is_not_held_ends_a_backup_of_many(dsa: TreeRank) -> None:
    answers = iter([lambda honest: honest, lose("indexer", 1), raising])
    dsa.shelf.faults["batch_set_v2"] = lambda honest: next(answers)(honest)
    assert claimed(dsa, pages=3 * STORAGE_BATCH_SIZE) == STORAGE_BATCH_SIZE + 1
    assert dsa.shelf.calls.count("batch_set_v2") == 2


def test_pools_with_indices_of_their_own_are_still_backed_up_first() -> None:
    calls: list[set[str]] = []
    with attached("swa") as rank:
        tune(rank, COMBINED)
        rank.shelf.faults["batch_set_v2"] = watch(calls)
        keys = rank.hashes(rank.tokens(PAGES))[-2:]
        slots = torch.arange(2 * rank.page_tokens)
        backed_up(rank, other=[PoolTransfer(name=PoolName.SWA, keys=keys, host_indices=slots)])
        assert calls == [{"swa"}]
        assert rank.shelf.calls[-2:] == ["batch_set_v2", "batch_set_v1"]


# Read batches


def operations_of(group: list[TreeRank], pages: int) -> list[Any]:
    """A settled operation of each rank over host slots of its own."""
    for rank in group:
        transfers = indexer() if rank.kind == "dsa" else None
        rank.query(pages, pool_transfers=transfers, assume_stored=True)
    operations = [rank.settled() for rank in group]
    for operation in operations:
        operation.host_indices = torch.arange(pages * group[0].page_tokens)
    return operations


def acknowledgements(rank: TreeRank) -> list[tuple[Any, ...]]:
    seen: list[Any] = []
    while not (seen and seen[-1].completed_req):
        seen.append(rank.controller.ack_prefetch_queue.get(timeout=20))
    return [(each.completed_tokens, bool(each.completed_req)) for each in seen]


@pytest.mark.parametrize("kind", ["mha", "dsa"])
@pytest.mark.parametrize("batch", [1, 3, 7, STORAGE_BATCH_SIZE, 1000])
@pytest.mark.parametrize("fault", ["none", "raises", "one-None", "cancelled"])
def test_an_operation_is_acknowledged_once_for_each_read_whatever_fails(
    kind: Kind, batch: int, fault: str
) -> None:
    pages = 7
    with attached(kind, pages=2) as rank:
        tune(rank, {"read_batch_pages": batch, **COMBINED})
        rank.store(rank.tokens(pages))
        (operation,) = operations_of([rank], pages)
        if fault == "cancelled":
            operation.mark_terminate()
        elif fault != "none":
            name = "batch_get_v2" if kind == "dsa" else "batch_get_v1"
            rank.shelf.faults[name] = BAD_RESULTS[fault]
        rank.controller.prefetch_buffer.put(operation)
        seen = acknowledgements(rank)
        assert len(seen) == -(-pages // batch) + (kind == "dsa") + 1
        reads = [tokens for tokens, _ in seen if tokens is not None]
        ends = [min(pages, at + batch) * rank.page_tokens for at in range(0, pages, batch)]
        assert reads == (ends if fault == "none" else [0] * len(ends))
        assert rank.threads_are_alive()


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("fault", [*BAD_DICTS, "cancelled"])
def test_ranks_acknowledge_alike_when_one_of_them_fails(fault: str, count: int) -> None:
    pages, batch = 7, 3
    with ranks(count, "dsa", pages=2) as group:
        for rank in group:
            tune(rank, {"read_batch_pages": batch, **COMBINED})
            rank.store(rank.tokens(pages))
        operations = operations_of(group, pages)
        if fault == "cancelled":
            operations[-1].mark_terminate()
        else:
            # The second read of the last rank fails; what the first has brought stays.
            answers = iter([lambda honest: honest, BAD_DICTS[fault]])
            group[-1].shelf.faults["batch_get_v2"] = lambda honest: next(answers)(honest)
        for rank, operation in zip(group, operations, strict=True):
            rank.controller.prefetch_buffer.put(operation)
        seen = [acknowledgements(rank) for rank in group]
        assert seen == [seen[0]] * count
        first = 0 if fault == "cancelled" else batch * group[0].page_tokens
        assert seen[0] == [*[(first, False)] * 3, (None, False), (None, True)]
        assert all(rank.threads_are_alive() for rank in group)


def start(rank: TreeRank) -> None:
    """What SGLang calls on each rank before the storage threads start."""
    hooks.start_storage(rank.controller)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks_that_would_read_differently_are_all_refused_at_start(count: int) -> None:
    shared = ways_of({"shared_mla": True}, is_mla_model=True, tp_rank=1, tp_size=2)
    with ranks(count, "mha") as group, ThreadPoolExecutor(count) as threads:

        def check() -> list[str]:
            """What each rank is refused for."""
            started = [threads.submit(start, rank) for rank in group]
            errors = [each.exception(timeout=20) for each in started]
            assert all(each is None or isinstance(each, ConfigError) for each in errors)
            return [each.setting for each in errors if isinstance(each, ConfigError)]

        assert check() == []
        for rank in group:
            tune(rank, {"read_batch_pages": 64})
        assert check() == []
        tune(group[0], {})
        assert check() == ["tuning.read_batch_pages"] * count
        tune(group[0], {"read_batch_pages": 64})
        group[-1].shelf.ways = shared
        shared.read_batch_pages = 64
        assert check() == ["tuning.shared_mla"] * count


def test_a_refusal_says_what_the_ranks_have() -> None:
    with ranks(2, "mha") as group, ThreadPoolExecutor(2) as threads:
        tune(group[1], {"read_batch_pages": 64})
        started = [threads.submit(start, rank) for rank in group]
        error = started[0].exception(timeout=20)
        assert "tuning.read_batch_pages is 128" in str(error)
        assert "64 to 128" in str(error)
