# SPDX-License-Identifier: Apache-2.0
"""Combined IO on the real KVCR: one operation, and every byte of every pool."""

from typing import Any

import pytest

from kvstrata_host.kvcr.replica import PATIENT, PlainReplica, pools_of, settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ALL = range(3)


class Counting:
    """Notes the operations of a runner, and does them."""

    def __init__(self, runner: Any) -> None:
        self.operations: list[int] = []
        self._kvcr = runner._kvcr
        runner._kvcr = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kvcr, name)

    def deposit(self, blocks: Any) -> Any:
        self.operations.append(len(blocks))
        return self._kvcr.deposit(blocks)

    def deliver(self, blocks: Any, name: str | None) -> Any:
        self.operations.append(len(blocks))
        return self._kvcr.deliver(blocks, name)


def test_kv_and_its_indexer_are_one_operation_with_results_of_their_own() -> None:
    replica = PlainReplica(pools_of("indexer", "page_first"), settings(**PATIENT))
    try:
        counting = Counting(replica.runner)
        assert replica.back_up(ALL) == {"kv": [True] * 3, "indexer": [True] * 3}
        assert replica.restore(ALL) == {"kv": [True] * 3, "indexer": [True] * 3}
        assert counting.operations == [6, 6]
    finally:
        replica.close()


def test_a_page_that_one_pool_lacks_is_missed_in_that_pool_alone() -> None:
    replica = PlainReplica(pools_of("indexer", "page_first"), settings(**PATIENT))
    try:
        places = {page: page for page in ALL}
        for pool in replica.pools.values():
            pool.fill(places)
        kv, indexer = replica.transfers(places)
        replica.store.batch_set_v1(kv.keys, kv.host_indices)
        assert indexer.keys is not None
        indexer.keys = indexer.keys[:2]
        indexer.host_indices = replica.pools["indexer"].slots([0, 1])
        replica.store.batch_set_v2([indexer])
        assert replica.restore(ALL) == {"kv": [True] * 3, "indexer": [True, True, False]}
    finally:
        replica.close()
