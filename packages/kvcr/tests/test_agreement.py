# SPDX-License-Identifier: Apache-2.0
"""What ranks agree to restore: 2, 3 and 4 of them over gloo, one of which fails in each way."""

import pkgutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang.srt.mem_cache.hicache_storage import PoolTransferResult

from kvstrata_host.kvcr.shelf import BAD_QUERIES, PAGES_KV, Fault, raising
from kvstrata_host.kvcr.trees import WINDOW_PAGES, TreeRank, attached, ranks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PAGES = 6


def boundaries(*lengths: int) -> Fault:
    return lambda honest: PoolTransferResult(max(lengths, default=0), {}, list(lengths))


def hits(group: list[TreeRank], pages: int = PAGES) -> list[Any]:
    """The operations of one prefetch on every rank, as settled by the storage threads."""
    for rank in group:
        rank.query(pages)
    return [rank.settled() for rank in group]


def lengths(operations: list[Any], page_tokens: int = 4) -> set[int]:
    """The restorable lengths in pages, each operation being consistent in itself."""
    for each in operations:
        pages = each.storage_hit_count // page_tokens
        assert each.hash_value == each.all_hash_values[:pages]
        assert each.pool_storage_result.kv_hit_pages == pages
        assert each.pool_storage_result.extra_pool_hit_pages == {}
    return {each.storage_hit_count // page_tokens for each in operations}


@pytest.fixture(params=[2, 3, 4], ids=lambda count: f"{count}-ranks")
def group(request: pytest.FixtureRequest) -> Iterator[list[TreeRank]]:
    with ranks(request.param, "mha") as made:
        for rank in made:
            rank.store(rank.tokens(PAGES))
        yield made


def test_ranks_that_hold_everything_restore_everything(group: list[TreeRank]) -> None:
    assert lengths(hits(group)) == {PAGES}


def test_ranks_with_two_five_and_two_four_agree_on_two(group: list[TreeRank]) -> None:
    group[0].shelf.faults["batch_exists_v2"] = boundaries(2, 5)
    group[-1].shelf.faults["batch_exists_v2"] = boundaries(2, 4)
    assert lengths(hits(group)) == {2}


def test_ranks_without_a_common_length_agree_on_nothing(group: list[TreeRank]) -> None:
    group[0].shelf.faults["batch_exists_v2"] = boundaries(5)
    group[-1].shelf.faults["batch_exists_v2"] = boundaries(4)
    assert lengths(hits(group)) == {0}


@pytest.mark.parametrize("fault", BAD_QUERIES.values(), ids=BAD_QUERIES)
def test_a_rank_whose_query_fails_makes_a_miss_and_holds_nobody_up(
    group: list[TreeRank], fault: Fault
) -> None:
    group[-1].shelf.faults["batch_exists_v2"] = fault
    assert lengths(hits(group)) == {0}
    group[-1].shelf.faults.clear()
    assert lengths(hits(group)) == {PAGES}
    assert all(rank.threads_are_alive() for rank in group)


def test_a_rank_that_cannot_hash_makes_a_miss_and_holds_nobody_up(
    group: list[TreeRank], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "kvstrata.kvcr.agreement.get_storage_hash_str"
    real, failing = pkgutil.resolve_name(target), group[-1].controller.prefetch_thread

    def hashes(*args: Any, **kwargs: Any) -> Any:
        return raising(None) if threading.current_thread() is failing else real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(target, hashes)
        operations = hits(group)
    assert {each.storage_hit_count for each in operations} == {0}
    assert operations[-1].all_hash_values is None
    assert lengths(hits(group)) == {PAGES}


def test_a_rank_whose_operation_was_cancelled_before_its_query_holds_nobody_up(
    group: list[TreeRank],
) -> None:
    blocked = group[-1].shelf
    for rank in group:
        rank.query(PAGES, cancelled=rank is group[-1])
    operations = [rank.settled() for rank in group]
    assert lengths(operations) == {0}
    assert "batch_exists_v2" not in blocked.calls
    names = [each.all_hash_values for each in operations]
    assert names == [names[0]] * len(group)
    assert len(names[0]) == PAGES
    assert lengths(hits(group)) == {PAGES}


def test_a_span_that_is_assumed_to_be_stored_is_taken_whole_without_a_query(
    group: list[TreeRank],
) -> None:
    for rank in group:
        rank.query(PAGES, assume_stored=True)
    assert lengths([rank.settled() for rank in group]) == {PAGES}
    assert not any("batch_exists_v2" in rank.shelf.calls for rank in group)


def test_operations_are_settled_in_the_order_in_which_they_came(group: list[TreeRank]) -> None:
    for pages in (1, 4, 2):
        for rank in group:
            rank.query(pages)
    for rank in group:
        seen = [rank.settled().storage_hit_count // 4 for _ in range(3)]
        assert seen == [1, 4, 2]


@pytest.fixture(scope="module")
def three() -> Iterator[list[TreeRank]]:
    with ranks(3, "mha") as made:
        yield made


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sets=st.tuples(*[st.sets(st.integers(1, PAGES))] * 3))
def test_the_agreed_length_is_the_longest_that_every_rank_allows(
    three: list[TreeRank], sets: tuple[set[int], ...]
) -> None:
    for rank, legal in zip(three, sets, strict=True):
        rank.shelf.faults["batch_exists_v2"] = boundaries(*sorted(legal))
    assert lengths(hits(three)) == {max(set.intersection(*sets), default=0)}


@pytest.mark.parametrize("span", range(1, PAGES + 1))
def test_checkpoints_at_two_and_five_pages_are_never_resumed_at_three_or_four(span: int) -> None:
    with attached("swa") as rank:
        stored = rank.store(rank.tokens(PAGES))
        # A window of two pages ends whole at pages 2 and 5 only.
        rank.shelf.held["swa"] = {stored[i] for i in (0, 1, 3, 4)}
        restored = rank.restored(rank.prefetch(rank.tokens(span)))
        assert restored // rank.page_tokens == {1: 1, 2: 2, 3: 2, 4: 2, 5: 5, 6: 5}[span]
        assert WINDOW_PAGES == 2


# The question of a decode server, which is asked on the scheduler thread.


def ask(rank: TreeRank, **namespace: str) -> int:
    root = rank.tree.root_node_handle()
    tokens = rank.tokens(PAGES)
    asked = rank.tree.query_storage_hit_length(root, tokens, None, None, **namespace)
    return int(asked) // rank.page_tokens


@pytest.mark.parametrize("kind", ["mha", "swa", "dsa"])
def test_a_decode_server_asks_for_the_pools_of_a_prefetch_and_gets_its_answer(kind: Any) -> None:
    with attached(kind) as rank:
        rank.store(rank.tokens(PAGES), short=1)
        free, tree = rank.free_slots(), rank.tree
        probed = ask(rank)
        assert rank.free_slots() == free
        assert not tree.ongoing_prefetch
        assert tree.cache_controller.prefetch_tokens_occupied == 0
        handle = rank.prefetch(rank.tokens(PAGES))
        assert rank.restored(handle) == probed * rank.page_tokens
        assert probed == (PAGES if kind == "mha" else PAGES - 1)
        probe, prefetch = (
            [(each.name, len(each.keys or []), each.hit_policy) for each in asked]
            for asked in rank.shelf.asked
        )
        assert probe == prefetch


def test_kv_alone_proves_nothing_to_a_decode_server_where_other_pools_are_needed() -> None:
    with attached("swa") as rank:
        rank.shelf.held[PAGES_KV].update(rank.hashes(rank.tokens(PAGES)))
        assert ask(rank) == 0


def test_a_decode_server_asks_nothing_about_less_than_the_threshold() -> None:
    with attached("mha") as rank:
        rank.store(rank.tokens(PAGES))
        rank.tree.prefetch_threshold = PAGES * rank.page_tokens + 1
        assert ask(rank) == 0
        assert rank.shelf.asked == []


@pytest.mark.parametrize(
    "namespace",
    [{"extra_key": "adapter"}, {"cache_salt": "salt"}, {"extra_key": "a", "cache_salt": "s"}],
    ids=["adapter", "salt", "both"],
)
def test_pages_of_another_adapter_or_salt_are_never_found(namespace: dict[str, str]) -> None:
    with attached("mha") as rank:
        plain, own = rank.hashes(rank.tokens(PAGES)), rank.hashes(rank.tokens(PAGES), **namespace)
        assert not set(plain) & set(own)
        assert not {page[:16] for page in plain} & {page[:16] for page in own}
        rank.store(rank.tokens(PAGES))
        assert ask(rank) == PAGES
        assert ask(rank, **namespace) == 0
        handle = rank.prefetch(rank.tokens(PAGES), "namespaced", **namespace)
        assert rank.restored(handle) == 0
        rank.shelf.held[PAGES_KV].update(own)
        assert ask(rank, **namespace) == PAGES
        assert rank.restored(rank.prefetch(rank.tokens(PAGES), "again", **namespace)) == 24


@pytest.mark.parametrize("way", [*BAD_QUERIES, "no-transfers", "differs"])
def test_a_rank_that_fails_to_answer_a_decode_server_holds_nobody_up(
    group: list[TreeRank], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "no-transfers":
        monkeypatch.setattr(group[-1].tree, "_build_sidecar_transfers", raising_for_any)
    elif way == "differs":
        group[-1].shelf.faults["batch_exists_v2"] = boundaries(2, 4)
    else:
        group[-1].shelf.faults["batch_exists_v2"] = BAD_QUERIES[way]
    with ThreadPoolExecutor(len(group)) as schedulers:
        assert set(schedulers.map(ask, group)) == {4 if way == "differs" else 0}


def raising_for_any(*args: Any, **kwargs: Any) -> Any:
    return raising(None)
