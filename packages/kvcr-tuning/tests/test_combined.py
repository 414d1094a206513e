# SPDX-License-Identifier: Apache-2.0
"""Combined IO on the real KVCR: one operation, and every byte of every pool."""

from typing import Any

import pytest

from kvstrata.kvcr.keys import page_of
from kvstrata_host.kvcr.replica import PATIENT, PlainReplica, page_hash, pools_of, settings

from .stores import every, replica

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ALL = range(3)


class Counting:
    """Notes the operations of a runner, and does them."""

    def __init__(self, runner: Any) -> None:
        self.operations: list[int] = []
        self.keys: list[bytes] = []
        self._kvcr = runner._kvcr
        runner._kvcr = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kvcr, name)

    def deposit(self, blocks: Any) -> Any:
        self._note(blocks)
        return self._kvcr.deposit(blocks)

    def deliver(self, blocks: Any, name: str | None) -> Any:
        self._note(blocks)
        return self._kvcr.deliver(blocks, name)

    def _note(self, blocks: Any) -> None:
        self.operations.append(len(blocks))
        self.keys = list(blocks)


def test_kv_and_its_indexer_are_one_operation_with_results_of_their_own() -> None:
    made = PlainReplica(pools_of("indexer", "page_first"), settings(**PATIENT))
    try:
        counting = Counting(made.runner)
        assert made.back_up(ALL) == {"kv": [True] * 3, "indexer": [True] * 3}
        assert made.restore(ALL) == {"kv": [True] * 3, "indexer": [True] * 3}
        assert counting.operations == [6, 6]
    finally:
        made.close()


def test_the_pages_of_all_pools_are_named_page_by_page_and_answered_pool_by_pool() -> None:
    with replica({"combined_io": True}, "indexer") as made:
        counting = Counting(made.runner)
        assert made.back_up(ALL) == every(made, [True] * 3)
        in_backup = [page_of(key) for key in counting.keys]
        assert in_backup == [page_hash(page) for page in ALL for _ in range(2)]
        assert made.restore([0, 9, 2]) == every(made, [True, False, True])
        in_restore = [page_of(key) for key in counting.keys]
        assert in_restore == [page_hash(page) for page in (0, 2) for _ in range(2)]


def test_a_page_that_one_pool_lacks_is_missed_in_that_pool_alone() -> None:
    made = PlainReplica(pools_of("indexer", "page_first"), settings(**PATIENT))
    try:
        places = {page: page for page in ALL}
        for pool in made.pools.values():
            pool.fill(places)
        kv, indexer = made.transfers(places)
        made.store.batch_set_v1(kv.keys, kv.host_indices)
        assert indexer.keys is not None
        indexer.keys = indexer.keys[:2]
        indexer.host_indices = made.pools["indexer"].slots([0, 1])
        made.store.batch_set_v2([indexer])
        assert made.restore(ALL) == {"kv": [True] * 3, "indexer": [True, True, False]}
    finally:
        made.close()
