# SPDX-License-Identifier: Apache-2.0
"""The stand-in for the store answers as the store does, so that what it shows holds for both."""

import functools
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

from kvstrata_host.kvcr.shelf import Shelf
from kvstrata_host.kvcr.trees import Kind, TreeRank
from kvstrata_host.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PAGES = 4


def real_store(storage_config: Any, model_path: str) -> object:
    from kvstrata.kvcr.store import KvcrStore

    storage_config.extra_config.update(
        dram_bytes="4MiB",
        control_port=free_ports(1)[0],
        nixl_port=free_ports(1)[0],
        model_id="tiny weights",
    )
    return KvcrStore(storage_config, model_path)


def plain(answer: Any) -> Any:
    """Results by pool name; of a query, its legal lengths."""
    if isinstance(answer, dict):
        return {str(pool): results for pool, results in answer.items()}
    return getattr(answer, "restorable_prefix_pages", answer)


def conversation(rank: TreeRank) -> list[Any]:
    """What a store answers to the same calls in the same order."""
    store, page = rank.controller.storage_backend, rank.page_tokens
    pages = rank.hashes(rank.tokens(PAGES))
    slots = torch.arange(PAGES * page)
    others = [
        PoolTransfer(
            name=PoolName(name),
            hit_policy=PoolHitPolicy.TRAILING_PAGES if name == "swa" else PoolHitPolicy.ALL_PAGES,
        )
        for name in rank.other_pools()
    ]

    def of(positions: list[int]) -> list[PoolTransfer]:
        """Each pool beside KV with the pages at these positions, in as many host pages."""
        for transfer in others:
            transfer.keys = [pages[i] for i in positions]
            transfer.host_indices = slots[: len(positions) * page]
        return others

    query = functools.partial(store.batch_exists_v2, pages)
    said = [query(of([0])), query([]), store.batch_get_v1(pages, slots)]
    said += [store.batch_set_v1(pages[:3], slots[: 3 * page]), query([])]
    if others:
        said += [query(of([0])), store.batch_set_v2(of([1])), query(of([0])), query(of([0, 1]))]
        said += [store.batch_set_v2(of([0, 2])), query(of([0, 1])), store.batch_get_v2(of([1, 3]))]
        said += [store.batch_set_v2(of([3, 3])), store.batch_get_v2(of([0, 0]))]
    said += [
        store.batch_get_v1(pages, slots),
        store.batch_get_v1([pages[0]] * 2, slots[: 2 * page]),
    ]
    return [plain(each) for each in said]


@pytest.mark.parametrize("kind", ["mha", "swa", "dsa"])
def test_the_stand_in_and_the_store_say_the_same(kind: Kind) -> None:
    said = []
    for store in (Shelf, real_store):
        rank = TreeRank(kind)
        assert rank.attach(store) == ""
        said.append(conversation(rank))
        rank.close()
    assert said[0] == said[1]
    assert [True, True, True, False] in said[0]
