# SPDX-License-Identifier: Apache-2.0
"""Reads and backups of pages: what the store says is checked, and every step is acknowledged."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import STORAGE_BATCH_SIZE, PoolName, PoolTransfer

from kvstrata.kvcr import hooks
from kvstrata_host.kvcr.shelf import BAD_DICTS, BAD_RESULTS, PAGES_KV, Fault, Shelf, raising
from kvstrata_host.kvcr.trees import Kind, TreeRank, attached, ranks, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PAGES = 5
OTHER = {"mha": "", "swa": "swa", "dsa": "indexer"}


@pytest.fixture
def mha() -> Iterator[TreeRank]:
    with attached("mha") as rank:
        yield rank


@pytest.fixture
def swa() -> Iterator[TreeRank]:
    with attached("swa") as rank:
        yield rank


@pytest.fixture
def dsa() -> Iterator[TreeRank]:
    with attached("dsa") as rank:
        yield rank


def restore(rank: TreeRank, rid: str = "request", pages: int = PAGES) -> int:
    """How many pages a prefetch brings."""
    return rank.restored(rank.prefetch(rank.tokens(pages), rid)) // rank.page_tokens


def lose(*positions: int) -> Fault:
    """A fault: in each pool, the pages at these positions were not had."""

    def change(answer: Any) -> Any:
        if isinstance(answer, dict):
            return {pool: change(results) for pool, results in answer.items()}
        return [had and i not in positions for i, had in enumerate(answer)]

    return change


# Reads, as the tree sees them. In each case all host slots come back, none of them twice.


def settles(rank: TreeRank, pages: int, fault: dict[str, Fault]) -> None:
    """A prefetch with a fault brings this many pages; then everything works as before it."""
    rank.store(rank.tokens(PAGES))
    free = rank.free_slots()
    rank.shelf.faults.update(fault)
    assert restore(rank) == pages
    assert free[PAGES_KV] - rank.free_slots()[PAGES_KV] == pages * rank.page_tokens
    assert pages or rank.free_slots() == free
    rank.shelf.faults.clear()
    assert restore(rank, "next") == PAGES - pages
    assert rank.threads_are_alive()
    assert rank.free_slots() != free
    rank.tree.evict_host(PAGES * rank.page_tokens)
    assert rank.free_slots() == free


@pytest.mark.parametrize("fault", BAD_RESULTS.values(), ids=BAD_RESULTS)
def test_a_wrong_result_for_kv_is_no_page_and_frees_every_slot_once(
    mha: TreeRank, fault: Fault
) -> None:
    settles(mha, 0, {"batch_get_v1": fault})


@pytest.mark.parametrize("fault", BAD_RESULTS.values(), ids=BAD_RESULTS)
def test_a_wrong_result_for_kv_discards_the_other_pools_too(swa: TreeRank, fault: Fault) -> None:
    settles(swa, 0, {"batch_get_v1": fault})


@pytest.mark.parametrize("fault", BAD_DICTS.values(), ids=BAD_DICTS)
def test_a_wrong_result_for_an_indexer_is_no_page_and_frees_every_slot_once(
    dsa: TreeRank, fault: Fault
) -> None:
    settles(dsa, 0, {"batch_get_v2": fault})


@pytest.mark.parametrize("fault", BAD_DICTS.values(), ids=BAD_DICTS)
def test_a_wrong_result_for_a_trailing_pool_discards_all_pages_once(
    swa: TreeRank, fault: Fault
) -> None:
    settles(swa, 0, {"batch_get_v2": fault})


@pytest.mark.parametrize("missing", range(2))
def test_a_trailing_pool_that_falls_short_discards_all_pages_once(
    swa: TreeRank, missing: int
) -> None:
    settles(swa, 0, {"batch_get_v2": lose(missing)})


@pytest.mark.parametrize("kind", ["mha", "dsa"])
@pytest.mark.parametrize("missing", range(PAGES))
def test_kv_ends_before_the_first_page_that_was_not_had(kind: Kind, missing: int) -> None:
    with attached(kind) as rank:
        settles(rank, missing, {"batch_get_v1": lose(missing)})


@pytest.mark.parametrize("missing", range(PAGES))
def test_an_indexer_that_is_short_shortens_kv(dsa: TreeRank, missing: int) -> None:
    settles(dsa, missing, {"batch_get_v2": lose(missing)})


def test_an_indexer_is_not_read_beyond_kv(dsa: TreeRank) -> None:
    asked: list[Any] = []

    def watch(honest: Any) -> Any:
        asked.append(honest)
        return honest

    settles(dsa, 3, {"batch_get_v1": lose(3), "batch_get_v2": watch})
    assert asked == [{"indexer": [True] * 3}]


def test_a_prefetch_that_is_ended_while_it_reads_frees_every_slot_once(swa: TreeRank) -> None:
    swa.store(swa.tokens(PAGES))
    free = swa.free_slots()
    handle = swa.prefetch(swa.tokens(PAGES))
    operation = swa.tree.ongoing_prefetch[handle].operation
    swa.shelf.faults["batch_get_v1"] = lambda honest: operation.mark_terminate() or honest
    assert swa.restored(handle) == 0
    assert swa.free_slots() == free
    assert swa.shelf.calls.count("batch_get_v2") == 0


@pytest.mark.parametrize("ending", ["aborted", "no-longer-waited-for"])
@pytest.mark.parametrize("kind", ["mha", "swa", "dsa"])
def test_host_pages_stay_taken_until_a_read_that_nobody_waits_for_has_ended(
    kind: Kind, ending: str
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hang(honest: Any) -> Any:
        entered.set()
        go_on.wait(20)
        return honest

    with attached(kind) as rank:
        rank.store(rank.tokens(PAGES))
        free = rank.free_slots()
        rank.shelf.faults["batch_get_v1"] = hang
        handle = rank.prefetch(rank.tokens(PAGES))
        until(lambda: rank.tree.drain_storage_control_queues() or entered.is_set())
        if ending == "aborted":
            rank.tree.release_aborted_request(handle)
        else:
            rank.tree.prefetch_stop_policy = "best_effort"
            assert rank.tree.check_prefetch_progress(handle)
            rank.tree.prefetch_stop_policy = "wait_complete"
        rank.tree.drain_storage_control_queues()
        taken = {pool: free[pool] - slots for pool, slots in rank.free_slots().items()}
        assert taken[PAGES_KV] == PAGES * rank.page_tokens
        assert taken.get("swa", 1) > 0
        go_on.set()
        until(lambda: rank.tree.drain_storage_control_queues() or rank.free_slots() == free)
        assert rank.shelf.recorder.discarded_pages == PAGES
        assert restore(rank, "next") == PAGES
        assert rank.shelf.recorder.discarded_pages == PAGES
        rank.tree.evict_host(PAGES * rank.page_tokens)
        assert rank.free_slots() == free


# Acknowledgements: each rank emits as many, whatever fails.


def operation_of(rank: TreeRank, pages: int, other: str) -> Any:
    """A settled operation over host slots of its own, and with a trailing pool if one is named."""
    transfers = None
    if other:
        transfers = [
            PoolTransfer(name=PoolName(other), indices_from_pool=PoolName.KV)
            if other == "indexer"
            else PoolTransfer(
                name=PoolName(other), keys=["-"], host_indices=torch.arange(rank.page_tokens)
            )
        ]
    operation = rank.query(pages, pool_transfers=transfers, assume_stored=True)
    if rank.settled() is not operation:
        raise RuntimeError("another operation was settled")
    operation.host_indices = torch.arange(pages * rank.page_tokens)
    return operation


def acknowledgements(rank: TreeRank) -> list[Any]:
    seen = [rank.controller.ack_prefetch_queue.get(timeout=20)]
    while not seen[-1].completed_req:
        seen.append(rank.controller.ack_prefetch_queue.get(timeout=20))
    return seen


@pytest.mark.parametrize("kind", ["mha", "swa", "dsa"])
@pytest.mark.parametrize("pages", [1, STORAGE_BATCH_SIZE, STORAGE_BATCH_SIZE + 1])
@pytest.mark.parametrize("fault", ["none", *BAD_DICTS, "cancelled"])
def test_an_operation_is_acknowledged_as_often_whatever_fails(
    kind: Kind, pages: int, fault: str
) -> None:
    expected = -(-pages // STORAGE_BATCH_SIZE) + (kind != "mha") + 1
    with attached(kind, pages=2) as rank:
        rank.store(rank.tokens(pages))
        operation = operation_of(rank, pages, OTHER[kind])
        if fault == "cancelled":
            operation.mark_terminate()
        elif fault != "none":
            rank.shelf.faults = dict.fromkeys(("batch_get_v1", "batch_get_v2"), BAD_DICTS[fault])
        rank.controller.prefetch_buffer.put(operation)
        seen = acknowledgements(rank)
        assert len(seen) == expected
        completed = [ack.completed_tokens for ack in seen if ack.completed_tokens is not None]
        assert completed == sorted(completed)
        assert completed[-1] == (pages * rank.page_tokens if fault == "none" else 0)
        assert rank.threads_are_alive()


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("fault", [*BAD_DICTS, "cancelled"])
@pytest.mark.parametrize("kind", ["mha", "dsa"])
def test_ranks_acknowledge_alike_when_one_of_them_fails(kind: Kind, fault: str, count: int) -> None:
    pages = STORAGE_BATCH_SIZE + 2
    with ranks(count, kind, pages=2) as group:
        for rank in group:
            rank.store(rank.tokens(pages))
            rank.query(pages, assume_stored=True, pool_transfers=indexer(kind))
        operations = [rank.settled() for rank in group]
        if fault == "cancelled":
            operations[-1].mark_terminate()
        else:
            shelf = group[-1].shelf
            shelf.faults = dict.fromkeys(("batch_get_v1", "batch_get_v2"), BAD_DICTS[fault])
        for rank, operation in zip(group, operations, strict=True):
            operation.host_indices = torch.arange(pages * rank.page_tokens)
            rank.controller.prefetch_buffer.put(operation)
        seen = [[summary(ack) for ack in acknowledgements(rank)] for rank in group]
        assert seen == [seen[0]] * count
        assert len(seen[0]) == 2 + (kind == "dsa") + 1
        assert not any(completed for completed, _ in seen[0])
        assert all(rank.threads_are_alive() for rank in group)


def indexer(kind: Kind) -> list[PoolTransfer] | None:
    if kind != "dsa":
        return None
    return [PoolTransfer(name=PoolName.INDEXER, indices_from_pool=PoolName.KV)]


def summary(ack: Any) -> tuple[Any, ...]:
    return ack.completed_tokens, ack.completed_req


def test_ranks_take_the_shortest_of_what_each_has_read() -> None:
    with ranks(3, "mha") as group:
        for rank, lost in zip(group, (4, 2, 3), strict=True):
            rank.store(rank.tokens(PAGES))
            rank.shelf.faults["batch_get_v1"] = lose(lost)
            rank.query(PAGES, assume_stored=True)
        for rank in group:
            operation = rank.settled()
            operation.host_indices = torch.arange(PAGES * rank.page_tokens)
            rank.controller.prefetch_buffer.put(operation)
        for rank in group:
            assert acknowledgements(rank)[0].completed_tokens == 2 * rank.page_tokens


def test_a_page_that_is_named_twice_is_a_miss_with_all_its_acknowledgements(mha: TreeRank) -> None:
    mha.store(mha.tokens(PAGES))
    operation = operation_of(mha, PAGES, "")
    operation.hash_value = [operation.hash_value[0]] * PAGES
    mha.controller.prefetch_buffer.put(operation)
    seen = acknowledgements(mha)
    assert [ack.completed_tokens for ack in seen] == [0, None]


def test_a_trailing_pool_whose_source_is_missing_is_a_miss_and_not_the_end(swa: TreeRank) -> None:
    swa.store(swa.tokens(PAGES))
    operation = operation_of(swa, PAGES, "swa")
    operation.pool_transfers.append(
        PoolTransfer(name=PoolName.DRAFT_SWA, indices_from_pool=PoolName.MAMBA)
    )
    swa.controller.prefetch_buffer.put(operation)
    hits = [ack.pool_hits for ack in acknowledgements(swa) if ack.pool_hits is not None]
    assert [set(each.values()) for each in hits] == [{0}]
    assert swa.threads_are_alive()


# Backups


def backed_up(rank: TreeRank, pages: int = PAGES, other: Any = None) -> Any:
    """Back pages up; the one acknowledgement."""
    tokens = rank.tokens(pages)
    indices = torch.arange(len(tokens))
    rank.controller.write_storage(indices, tokens, rank.hashes(tokens), None, extra_pools=other)
    operation = rank.controller.ack_backup_queue.get(timeout=20)
    marker = rank.controller.write_storage(indices[:0], tokens[:0], [], None)
    assert rank.controller.ack_backup_queue.get(timeout=20).id == marker
    return operation


def claimed(rank: TreeRank, **given: Any) -> int:
    return int(backed_up(rank, **given).completed_tokens) // rank.page_tokens


def trailing(rank: TreeRank, pages: int = PAGES) -> list[PoolTransfer]:
    """The last two pages of a window."""
    keys = rank.hashes(rank.tokens(pages))[-2:]
    slots = torch.arange(2 * rank.page_tokens)
    return [PoolTransfer(name=PoolName.SWA, keys=keys, host_indices=slots)]


def test_pages_that_are_held_in_all_pools_are_claimed(dsa: TreeRank) -> None:
    assert claimed(dsa, other=indexer("dsa")) == PAGES
    held = set(dsa.hashes(dsa.tokens(PAGES)))
    assert dsa.shelf.held == {PAGES_KV: held, "indexer": held}


@pytest.mark.parametrize("fault", BAD_RESULTS.values(), ids=BAD_RESULTS)
def test_a_wrong_result_for_kv_claims_no_page(mha: TreeRank, fault: Fault) -> None:
    mha.shelf.faults["batch_set_v1"] = fault
    assert claimed(mha) == 0
    mha.shelf.faults.clear()
    assert claimed(mha) == PAGES


@pytest.mark.parametrize("fault", BAD_DICTS.values(), ids=BAD_DICTS)
def test_a_wrong_result_for_a_sidecar_claims_no_page_that_needs_it(
    dsa: TreeRank, fault: Fault
) -> None:
    dsa.shelf.faults["batch_set_v2"] = fault
    assert claimed(dsa, other=indexer("dsa")) == 0
    assert dsa.threads_are_alive()


@pytest.mark.parametrize("missing", range(PAGES))
def test_pages_are_claimed_up_to_the_first_whose_kv_or_sidecar_is_not_held(
    dsa: TreeRank, missing: int
) -> None:
    dsa.shelf.faults["batch_set_v2"] = lose(missing)
    assert claimed(dsa, other=indexer("dsa")) == missing
    dsa.shelf.faults = {"batch_set_v1": lose(missing)}
    assert claimed(dsa, other=indexer("dsa")) == missing


def test_pages_before_a_window_that_is_not_held_are_claimed(swa: TreeRank) -> None:
    swa.shelf.faults["batch_set_v2"] = raising
    assert claimed(swa, other=trailing(swa)) == 0
    swa.shelf.faults["batch_set_v2"] = lambda answer: {}
    assert claimed(swa, other=trailing(swa)) == PAGES - 2
    swa.shelf.faults["batch_set_v2"] = lose(1)
    assert claimed(swa, other=trailing(swa)) == PAGES - 1


def test_kv_is_deposited_although_a_sidecar_is_not_held(swa: TreeRank) -> None:
    swa.shelf.faults["batch_set_v2"] = raising
    backed_up(swa, other=trailing(swa))
    assert swa.shelf.held[PAGES_KV] == set(swa.hashes(swa.tokens(PAGES)))


def test_a_batch_that_is_not_held_ends_a_backup_of_many(mha: TreeRank) -> None:
    pages = 3 * STORAGE_BATCH_SIZE
    answers = iter([lose(), lose(1), raising])
    mha.shelf.faults["batch_set_v1"] = lambda honest: next(answers)(honest)
    assert claimed(mha, pages=pages) == STORAGE_BATCH_SIZE + 1
    assert mha.shelf.calls.count("batch_set_v1") == 2


def test_a_page_that_is_named_twice_is_not_claimed(mha: TreeRank) -> None:
    tokens = mha.tokens(2)
    twice = mha.hashes(tokens)[:1] * 2
    mha.controller.write_storage(torch.arange(len(tokens)), tokens, twice, None)
    assert mha.controller.ack_backup_queue.get(timeout=20).completed_tokens == 0


def test_a_sidecar_whose_source_is_missing_claims_nothing_and_is_not_the_end(
    swa: TreeRank,
) -> None:
    orphan = PoolTransfer(name=PoolName.DRAFT_SWA, indices_from_pool=PoolName.MAMBA)
    assert claimed(swa, other=[orphan]) == 0
    assert claimed(swa) == PAGES


# Attaching


def test_all_pools_are_registered_before_the_store_starts() -> None:
    seen: list[dict[str, object]] = []

    class Watching(Shelf):
        def start(self) -> None:
            seen.append(dict(self.registered_pools))
            super().start()

    rank = TreeRank("dsa")
    assert rank.attach(Watching) == ""
    assert set(seen[0]) == {PoolName.KV, PoolName.INDEXER}
    rank.close()


def test_every_rank_backs_up_its_own_copy_of_replicated_kv(dsa: TreeRank) -> None:
    dsa.controller.backup_skip = True  # as SGLang sets it for all ranks but the first
    hooks.start_storage(dsa.controller)
    assert dsa.controller.backup_skip is False


def test_a_store_that_does_not_start_leaves_the_server_without_storage_until_it_does() -> None:
    class Refusing(Shelf):
        def start(self) -> None:
            raise RuntimeError("no port")

    rank = TreeRank("swa")
    assert "no port" in rank.attach(Refusing)
    controller = rank.controller
    assert not controller.enable_storage
    assert controller.storage_backend is None
    assert rank.attach() == ""
    rank.store(rank.tokens(PAGES))
    assert restore(rank) == PAGES
    shelf = rank.shelf
    assert rank.tree.detach_storage_backend()[0]
    assert not shelf.is_open
    assert rank.attach() == ""
    assert rank.shelf is not shelf
    rank.close()
