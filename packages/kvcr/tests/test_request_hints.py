# SPDX-License-Identifier: Apache-2.0
"""A hint's way from the request to the store: at each prefetch of it, and of nobody else's."""

import json
from collections.abc import Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from kvstrata.kvcr.endpoints import Endpoint
from kvstrata.kvcr.hints import Hint
from kvstrata_host.kvcr.trees import TreeRank, attached

# After the trees, whose imports are guarded against warnings.
from sglang.srt.disaggregation.decode_hicache_mixin import (  # isort: skip
    DecodeHiCachePreallocMixin,
)
from sglang.srt.managers.io_struct import GenerateReqInput  # isort: skip
from sglang.srt.managers.schedule_batch import Req  # isort: skip
from sglang.srt.managers.scheduler import Scheduler  # isort: skip
from sglang.srt.sampling.sampling_params import SamplingParams  # isort: skip

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PAGES = 4
HAS_NATIVE_HINTS = metadata.version("sglang") != "0.5.20"
native_hints = pytest.mark.skipif(not HAS_NATIVE_HINTS, reason="SGLang 0.5.20 has no such field")


def envelope(hashes: list[int]) -> dict[str, Any]:
    payload = {"source_control_endpoint": "tcp://192.0.2.1:28500", "block_hashes": hashes}
    action = {
        "action_id": "a",
        "action_type": "kv.fetch",
        "action_version": "1.0",
        "payload": payload,
    }
    return {"protocol_version": "0.1", "message_id": "m", "actions": [action]}


def hint(hashes: list[int]) -> Hint:
    return Hint(Endpoint("192.0.2.1", 28500), frozenset(hashes))


def request(rank: TreeRank, hashes: list[int] | None, rid: str = "r", **fields: Any) -> Any:
    """A request for PAGES pages and a token, with a hint in its custom parameters."""
    carried = None if hashes is None else {"kv_hints": json.dumps(envelope(hashes))}
    tokens = rank.tokens(PAGES + 1)[: PAGES * rank.page_tokens + 1]
    params = SamplingParams(custom_params=carried)
    made = Req(rid, "", tokens, params, **fields)
    made.extra_key = None
    return made


def scheduler(rank: TreeRank) -> Any:
    made = object.__new__(Scheduler)
    made.enable_hicache_storage, made.enable_lmcache = True, False
    made.tree_cache = rank.tree
    return made


@pytest.fixture(params=["mha", "swa", "dsa"])
def rank(request: pytest.FixtureRequest) -> Iterator[TreeRank]:
    with attached(request.param) as made:
        made.store(made.tokens(PAGES))
        yield made


@pytest.fixture
def buffered() -> Iterator[TreeRank]:
    """A rank whose host memory is a buffer alone."""
    with attached("swa", mode="buffer_only") as made:
        made.store(made.tokens(PAGES))
        yield made


def calls(rank: TreeRank) -> list[str]:
    """The calls in which a prefetch of everything results."""
    reads = {"mha": 1, "swa": 2, "dsa": 2}[rank.kind]
    return ["batch_exists_v2", "batch_get_v1", "batch_get_v2"][: reads + 1]


def test_a_hint_reaches_the_query_and_the_reads_of_every_pool(rank: TreeRank) -> None:
    asked = request(rank, [1, 2])
    scheduler(rank)._prefetch_kvcache(asked)
    assert rank.restored(asked.cache_request_handle) == PAGES * rank.page_tokens
    assert rank.shelf.hints[1:] == [(call, hint([1, 2])) for call in calls(rank)]


def test_a_hint_never_reaches_another_request(rank: TreeRank) -> None:
    for rid, hashes in (("a", [1]), ("b", None), ("c", [3])):
        asked = request(rank, hashes, rid)
        scheduler(rank)._prefetch_kvcache(asked)
        rank.restored(asked.cache_request_handle)
        rank.tree.evict_host(PAGES * rank.page_tokens)
    expected = [
        (call, None if hashes is None else hint(hashes))
        for hashes in ([1], None, [3])
        for call in calls(rank)
    ]
    assert rank.shelf.hints[1:] == expected


def test_requests_under_way_at_once_keep_their_own_hints() -> None:
    with attached("mha", pages=16 * PAGES) as rank:
        hinted = [request(rank, [i], str(i), cache_salt=str(i)) for i in range(8)]
        hinted.append(request(rank, None, "none"))
        for each in hinted:
            scheduler(rank)._prefetch_kvcache(each)
        for each in hinted:
            assert rank.restored(each.cache_request_handle) == 0
        seen = [carried for call, carried in rank.shelf.hints if call == "batch_exists_v2"]
        assert seen == [*(hint([i]) for i in range(8)), None]


def test_a_retry_and_a_prefetch_after_a_lost_device_hit_keep_the_hint(rank: TreeRank) -> None:
    rank.shelf.held.clear()
    asked, own = request(rank, [7]), scheduler(rank)
    own._prefetch_kvcache(asked)
    assert rank.restored(asked.cache_request_handle) == 0
    own._retry_storage_prefetch(asked)
    assert rank.restored(asked.cache_request_handle) == 0
    asked.storage_prefetch_last_match_len = rank.page_tokens  # more than is matched now
    assert own._prefetch_after_device_hit_loss(asked)
    assert rank.restored(asked.cache_request_handle) == 0
    assert rank.shelf.hints[1:] == [("batch_exists_v2", hint([7]))] * 3
    assert len(rank.shelf.read) == 1


def test_a_prefetch_that_skips_the_query_keeps_the_hint_for_its_reads(buffered: TreeRank) -> None:
    asked = request(buffered, [5])
    scheduler(buffered)._prefetch_kvcache(asked, PAGES * buffered.page_tokens)
    buffered.restored(asked.cache_request_handle)
    assert buffered.shelf.hints[1:] == [
        ("batch_get_v1", hint([5])),
        ("batch_get_v2", hint([5])),
    ]


def test_a_hit_that_was_parked_keeps_the_hint_for_its_reads(
    buffered: TreeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(buffered, [5])
    with monkeypatch.context() as full:
        full.setattr(buffered.controller, "prefetch_rate_limited", lambda: True)
        scheduler(buffered)._prefetch_kvcache(asked)
        parked = buffered.tree.buffer_pipeline.pending_hit_allocs
        while not parked:
            buffered.tree.drain_storage_control_queues()
    assert [call for call, _ in buffered.shelf.hints[1:]] == ["batch_exists_v2"]
    buffered.restored(asked.cache_request_handle)
    assert not parked
    assert buffered.shelf.hints[1:] == [
        (call, hint([5])) for call in ("batch_exists_v2", "batch_get_v1", "batch_get_v2")
    ]


def test_a_decode_servers_probe_and_prefetch_have_the_hint(rank: TreeRank) -> None:
    asked, decode = request(rank, [9]), object.__new__(DecodeHiCachePreallocMixin)
    decode.scheduler = SimpleNamespace(enable_decode_hicache=True)
    decode.tree_cache = rank.tree
    root = rank.tree.root_node_handle()
    nothing = SimpleNamespace(
        device_indices=[], host_hit_length=0, last_host_node=root, last_device_node=root
    )
    for _ in range(2):  # a request that is not admitted is asked for again
        match = decode._build_decode_prefix_match(asked, nothing)
        assert match.l3_storage_hit_length == PAGES * rank.page_tokens
    assert rank.shelf.hints[1:] == [("batch_exists_v2", hint([9]))] * 2
    decode._start_hicache_prefetch(asked, match)
    assert match.prefetch_registered
    assert rank.restored(asked.cache_request_handle) == PAGES * rank.page_tokens
    assert rank.shelf.hints[3:] == [(call, hint([9])) for call in calls(rank)]
    assert len(rank.shelf.read) == 1


def test_a_hostile_hint_costs_its_request_nothing(rank: TreeRank) -> None:
    asked = request(rank, None)
    asked.sampling_params.custom_params = {"kv_hints": "{" * 100}
    scheduler(rank)._prefetch_kvcache(asked)
    assert rank.restored(asked.cache_request_handle) == PAGES * rank.page_tokens
    assert {carried for _, carried in rank.shelf.hints} == {None}


def test_what_the_prefetch_returns_is_returned(
    rank: TreeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank.tree, "prefetch_from_storage", lambda *args, **kwargs: True)
    returned = scheduler(rank)._prefetch_kvcache(request(rank, [1]))
    assert returned is (True if HAS_NATIVE_HINTS else None)


def test_the_items_of_a_batch_have_a_hint_each() -> None:
    batch = GenerateReqInput(
        input_ids=[[1], [2], [3]],
        sampling_params=[{"custom_params": {"kv_hints": "a"}}, {}, {"custom_params": None}],
    )
    batch.normalize_batch_and_arguments()
    found = [batch[i].sampling_params.get("custom_params") for i in range(3)]
    assert found == [{"kv_hints": "a"}, None, None]


# What SGLang 0.5.21 has.


@native_hints
def test_the_native_hint_of_a_request_reaches_the_store_and_wins(rank: TreeRank) -> None:
    from sglang.srt.managers.kv_hints import decode_kv_hints_envelope

    asked = request(rank, [1], kv_hints=decode_kv_hints_envelope(envelope([2])))
    scheduler(rank)._prefetch_kvcache(asked)
    assert rank.restored(asked.cache_request_handle) == PAGES * rank.page_tokens
    assert rank.shelf.hints[1:] == [(call, hint([2])) for call in calls(rank)]


@native_hints
def test_the_items_of_a_batch_have_a_native_hint_each() -> None:
    batch = GenerateReqInput(
        input_ids=[[1], [2], [3]],
        sampling_params={},
        kv_hints=[envelope([1]), None, envelope([3])],
    )
    batch.normalize_batch_and_arguments()
    found = [batch[i].kv_hints for i in range(3)]
    assert found[1] is None
    assert [each.actions[0].payload["block_hashes"] for each in (found[0], found[2])] == [[1], [3]]


@native_hints
def test_pipeline_tickets_never_exist_since_pipelines_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sglang.srt.managers import cache_controller

    from kvstrata.kvcr.store import KvcrStore

    class Pipelined:
        """SGLang's place of this rank, in a pipeline of two."""

        pp_size = 2
        _real = cache_controller.get_parallel()

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    rank = TreeRank("mha", mode="buffer_only")
    controller = rank.controller
    monkeypatch.setattr(type(controller), "_create_sync_groups", lambda self: [])
    controller.pp_group = SimpleNamespace(size=lambda: 2)
    with monkeypatch.context() as pipelined:
        pipelined.setattr(cache_controller, "get_parallel", Pipelined)
        assert "--pp-size" in rank.attach(KvcrStore)
    # Not even where nothing refused a pipeline: SGLang has tickets for another backend alone.
    assert rank.attach() == ""
    assert controller.pp_prefetch_command_group is None
    assert controller.get_prefetch_submission("r") is None
    rank.close()
