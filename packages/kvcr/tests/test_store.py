# SPDX-License-Identifier: Apache-2.0
"""The backend behind SGLang's own controller and its threads."""

import dataclasses
import json
import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

from kvstrata.kvcr import ConfigError
from kvstrata.kvcr.config import KvcrConfig
from kvstrata.kvcr.endpoints import Endpoint
from kvstrata.kvcr.hints import Hint, RequestHint, carrying
from kvstrata.kvcr.metrics import MissReason, NullRecorder, Source
from kvstrata.kvcr.store import KvcrStore
from kvstrata_host.hybrid import make_states, make_window
from kvstrata_host.kvcr.replica import RANK, Pages, contents, settings
from kvstrata_host.rank import PAGE_TOKENS, Kind, Rank, bring_up, make_pools, page_hashes

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TOKENS = list(range(8 * PAGE_TOKENS))
PATHS = (("page_first", "kernel"), ("page_first_direct", "direct"))
PAGES = len(TOKENS) // PAGE_TOKENS


class Replica(Rank):
    """One rank with the backend under test."""

    def __init__(
        self,
        kind: Kind,
        path: tuple[str, str],
        settings: dict[str, object],
        sidecars: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            kind, *path, storage_backend="kvcr", extra_config=settings, sidecars=sidecars
        )
        self.settings = settings


@contextmanager
def running(
    kind: Kind = "mha",
    layout: int = 0,
    sidecars: Mapping[str, Any] | None = None,
    **changes: object,
) -> Iterator[Replica]:
    made = Replica(kind, PATHS[layout], settings(**changes), sidecars)
    try:
        yield made
    finally:
        made.close()


def hint_to(source: Replica, tokens: list[int]) -> RequestHint:
    payload = {
        "source_control_endpoint": f"tcp://127.0.0.1:{source.settings['control_port']}",
        "block_hashes": [int(page[:16], 16) for page in page_hashes(tokens)],
        "mode": "copy",
    }
    action = {"action_type": "kv.fetch", "action_version": "1.0", "payload": payload}
    envelope = {"protocol_version": "0.1", "message_id": "m", "actions": [action]}
    return RequestHint(json.dumps(envelope))


def equal(restored: list[torch.Tensor], written: list[torch.Tensor]) -> bool:
    return len(restored) == len(written) and all(map(torch.equal, restored, written))


@pytest.mark.parametrize("layout", range(len(PATHS)), ids=[name for name, _ in PATHS])
@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_kv_backed_up_by_sglang_comes_back_byte_for_byte(kind: Kind, layout: int) -> None:
    with running(kind, layout) as own:
        written = own.back_up(TOKENS)
        restored, kv = own.restore(TOKENS)
        assert restored == len(TOKENS)
        assert equal(kv, written)
        kv[0][0] += 1
        assert not equal(kv, written)


def test_a_prefix_that_was_never_backed_up_is_a_miss() -> None:
    with running() as own:
        own.back_up(TOKENS)
        assert own.restore([t + 1000 for t in TOKENS]) == (0, [])


def test_a_longer_prompt_restores_the_pages_that_are_held() -> None:
    with running() as own:
        own.back_up(TOKENS)
        restored, _ = own.restore(TOKENS + list(range(500, 500 + 2 * PAGE_TOKENS)))
        assert restored == len(TOKENS)


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_kv_is_restored_from_another_replica_by_the_hint_of_a_request(kind: Kind) -> None:
    with running(kind) as source, running(kind) as target:
        written = source.back_up(TOKENS)
        assert target.restore(TOKENS) == (0, [])
        with carrying(hint_to(source, TOKENS)):
            restored, kv = target.restore(TOKENS)
        assert restored == len(TOKENS)
        assert equal(kv, written)
        assert target.restore(TOKENS) == (0, [])


@pytest.mark.parametrize(
    "changes",
    [{"trust_request_hints": False}, {"allowed_peers": ["192.0.2.1"]}, {"model_id": "others"}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_hint_that_must_not_be_followed_restores_nothing(changes: dict[str, Any]) -> None:
    with running() as source, running(**changes) as target:
        source.back_up(TOKENS)
        with carrying(hint_to(source, TOKENS)):
            assert target.restore(TOKENS) == (0, [])


def test_pages_of_another_layout_never_match() -> None:
    with running(layout=0) as source, running(layout=1) as target:
        source.back_up(TOKENS)
        with carrying(hint_to(source, TOKENS)):
            assert target.restore(TOKENS) == (0, [])


def test_a_hint_to_oneself_is_a_local_restore() -> None:
    with running() as own:
        own.back_up(TOKENS)
        with carrying(hint_to(own, TOKENS)):
            assert own.restore(TOKENS)[0] == len(TOKENS)
            assert own.restore([9999] * len(TOKENS)) == (0, [])


@pytest.mark.parametrize("raw", ["", "{", "[]", 7, {"a": 1}, "tcp://127.0.0.1:1"])
def test_a_malformed_hint_leaves_the_local_restore_as_it_is(raw: object) -> None:
    with running() as own:
        own.back_up(TOKENS)
        with carrying(RequestHint(raw)):
            assert own.restore(TOKENS)[0] == len(TOKENS)


def test_a_dead_peer_is_a_quick_miss_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with running() as own:
        own.back_up(TOKENS)
        with running() as dead:
            hint = hint_to(dead, TOKENS + [7] * PAGE_TOKENS)
        with carrying(hint), caplog.at_level(logging.WARNING):
            assert own.restore(TOKENS)[0] == len(TOKENS)
        assert "peer unreachable" in caplog.text


def test_no_failure_inside_the_store_reaches_sglangs_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("injected")

    with running() as own:
        own.back_up(TOKENS)
        for method in ("query", "deliver"):
            with monkeypatch.context() as broken:
                broken.setattr(own.store._session.runner, method, fail)
                assert own.restore(TOKENS) == (0, [])
            assert "injected" in caplog.text
            caplog.clear()
        assert own.restore(TOKENS)[0] == len(TOKENS)
        indices = own.host_pool.alloc(PAGE_TOKENS)
        with monkeypatch.context() as broken:
            broken.setattr(own.store._session.runner, "deposit", fail)
            assert own.store.batch_set_v1(page_hashes(TOKENS[:PAGE_TOKENS]), indices) == [False]


def test_a_page_named_twice_or_keys_without_pages_are_misses_before_any_io(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running() as own:
        page = page_hashes(TOKENS)[0]
        two = own.host_pool.alloc(2 * PAGE_TOKENS)
        calls: list[object] = []
        for method in ("deposit", "deliver"):
            monkeypatch.setattr(own.store._session.runner, method, calls.append)
        for call in (own.store.batch_get_v1, own.store.batch_set_v1):
            assert call([page, page], two) == [False, False]
            assert call([page], two) == [False]
            assert call(["not hexadecimal", page], two) == [False, False]
        assert calls == []


def test_clearing_forgets_every_page_and_leaves_the_store_usable() -> None:
    with running() as own:
        own.back_up(TOKENS)
        assert own.controller.clear_storage_backend()
        assert own.restore(TOKENS) == (0, [])
        written = own.back_up(TOKENS)
        assert equal(own.restore(TOKENS)[1], written)


def test_the_backend_can_be_detached_and_attached_again_on_the_same_ports() -> None:
    with running() as own:
        own.back_up(TOKENS)
        own.controller.detach_storage_backend()
        own.controller.attach_storage_backend(
            "kvcr",
            prefetch_threshold=PAGE_TOKENS,
            model_name="tiny",
            storage_backend_extra_config=dict(own.settings),
            host_pools=own.controller.mem_pool_host.entries,
        )
        own.store.start()
        written = own.back_up(TOKENS)
        assert equal(own.restore(TOKENS)[1], written)


def test_a_closed_store_is_a_miss() -> None:
    with running() as own:
        store, indices = own.store, own.host_pool.alloc(PAGE_TOKENS)
        page = page_hashes(TOKENS)[:1]
        own.controller.detach_storage_backend()
        store.close()
        assert store.batch_exists(page) == 0
        assert store.batch_get_v1(page, indices) == [False]
        assert store.batch_set_v1(page, indices) == [False]


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"pp_size": 2}, "--pp-size"),
        ({"should_split_heads": True, "tp_lcm_size": 4}, "tp_lcm_size"),
        ({"extra_config": {"dram_byte": 1}}, "extra-config key"),
    ],
    ids=["pipeline", "head split", "unknown key"],
)
def test_what_is_not_supported_is_refused_at_start_by_name(
    changes: dict[str, Any], setting: str
) -> None:
    bring_up()
    with pytest.raises(ConfigError) as caught:
        KvcrStore(dataclasses.replace(RANK, **changes), "unused")
    assert setting in caught.value.setting


def test_a_wrong_layout_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="layer_first"):
        Replica("mha", ("layer_first", "direct"), settings())


def test_a_port_in_use_is_refused_at_start() -> None:
    with running() as first, pytest.raises(ConfigError, match="control_port"):
        Replica("mha", PATHS[0], settings(control_port=first.settings["control_port"]))


def test_a_tier_smaller_than_a_page_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="one page of each of kv"):
        Replica("mha", PATHS[0], settings(dram_bytes=16))


@pytest.mark.parametrize(
    ("changes", "rank"),
    [
        ({}, 0),
        ({"tp_rank": 1, "tp_size": 2}, 1),
        ({"tp_rank": 1, "tp_size": 2, "attn_cp_rank": 3, "attn_cp_size": 4}, 7),
    ],
)
def test_ranks_find_their_counterparts_by_port(
    changes: dict[str, Any], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up()
    config = dataclasses.replace(RANK, extra_config={"model_id": "m"}, **changes)
    store = KvcrStore(config, "unused")
    assert store._rank == rank
    monkeypatch.setattr(store._probe, "reachable", lambda peer: True)
    with carrying(Hint(Endpoint("other", 1000), frozenset({1}))):
        hint = store._peer().hint
    assert hint is not None
    assert hint.source == Endpoint("other", 1000 + rank)


def test_only_the_leading_pages_count_as_existing() -> None:
    with running() as own:
        own.back_up(TOKENS)
        pages = page_hashes(TOKENS)
        assert own.store.batch_exists(pages) == PAGES
        assert own.store.batch_exists([*pages[:2], "00" * 32, *pages[3:]]) == 2
        assert own.store.batch_exists([]) == 0
        assert own.store.exists(pages[-1])
        assert not own.store.exists("00" * 32)


TRAILING = PoolHitPolicy.TRAILING_PAGES


@pytest.mark.parametrize("layout", range(len(PATHS)), ids=[name for name, _ in PATHS])
@pytest.mark.parametrize(
    ("name", "window", "boundary"), [("mamba", 1, 5), ("swa", 2, 6)], ids=["mamba", "swa"]
)
def test_sglang_backs_up_and_restores_a_trailing_pool_beside_kv(
    name: str, window: int, boundary: int, layout: int
) -> None:
    from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

    make = make_states if name == "mamba" else make_window
    with running(layout=layout, sidecars={name: make(PATHS[layout][0])}) as own:
        controller, hashes = own.controller, page_hashes(TOKENS)
        kv = Pages("kv", own.host_pool)
        extra = Pages(name, controller.mem_pool_host.entry_map[PoolName(name)].host_pool)
        held = range(boundary - window, boundary)
        for page in range(PAGES):
            kv.write(page, contents("kv", page, kv.page_bytes))
        for at, page in enumerate(held):
            extra.write(at, contents(name, page, extra.page_bytes))
        backup = PoolTransfer(
            PoolName(name),
            host_indices=extra.slots(range(window)),
            keys=[hashes[page] for page in held],
            hit_policy=TRAILING,
        )
        controller.write_storage(kv.slots(range(PAGES)), TOKENS, hashes, extra_pools=[backup])
        assert controller.ack_backup_queue.get(timeout=20).completed_tokens == len(TOKENS)
        kv.clear()
        extra.clear()

        wanted = PoolTransfer(PoolName(name), keys=["?"] * window, hit_policy=TRAILING)
        controller.prefetch(CacheRequestHandle("request", 0), TOKENS, extra_pools=[wanted])
        hit = controller.prefetch_hit_queue.get(timeout=20)
        assert hit.storage_hit_count == boundary * PAGE_TOKENS
        hit.host_indices = kv.slots(range(boundary))
        wanted.host_indices = extra.slots(range(window))
        controller.prefetch_buffer.put(hit)
        completed, pool_hits = 0, dict[str, int]()
        while not (ack := controller.ack_prefetch_queue.get(timeout=20)).completed_req:
            completed = ack.completed_tokens or completed
            pool_hits = ack.pool_hits or pool_hits
        assert completed == boundary * PAGE_TOKENS
        assert pool_hits[name] == window
        for page in range(boundary):
            assert kv.read(page) == contents("kv", page, kv.page_bytes)
        for at, page in enumerate(held):
            assert extra.read(at) == contents(name, page, extra.page_bytes)
        assert extra.read(0) != contents(name, page + 1, extra.page_bytes)


def late_entry() -> Any:
    from sglang.srt.mem_cache.pool_host import PoolEntry

    pool = make_pools("mla", "page_first")[1]
    return PoolEntry(PoolName.DRAFT, pool, None, lambda layer: layer)


def test_a_pool_that_sglang_registers_after_the_start_is_served_as_well() -> None:
    with running() as own:
        own.controller.register_host_pool_entry(late_entry())
        draft = Pages("draft", own.controller.mem_pool_host.entry_map[PoolName.DRAFT].host_pool)
        draft.write(0, contents("draft", 0, draft.page_bytes))
        page = page_hashes(TOKENS)[:1]
        transfer = PoolTransfer(PoolName.DRAFT, host_indices=draft.slots([0]), keys=page)
        assert own.store.batch_set_v2([transfer]) == {"draft": [True]}
        draft.clear()
        assert own.store.batch_get_v2([transfer]) == {"draft": [True]}
        assert draft.read(0) == contents("draft", 0, draft.page_bytes)
        own.back_up(TOKENS)
        assert own.restore(TOKENS)[0] == len(TOKENS)


def test_a_pool_that_comes_after_pages_were_stored_is_refused_and_costs_none_of_them() -> None:
    with running() as own:
        own.back_up(TOKENS)
        with pytest.raises(ConfigError, match="before the first page is stored"):
            own.controller.register_host_pool_entry(late_entry())
        assert own.restore(TOKENS)[0] == len(TOKENS)


def test_a_second_pool_of_one_name_is_refused() -> None:
    with running() as own, pytest.raises(ConfigError, match="one host pool of each name"):
        own.store.register_mem_host_pool_v2(make_pools("mha", "page_first")[1], "kv")


def test_a_clear_that_fails_is_a_miss_of_everything_and_no_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running() as own:
        own.back_up(TOKENS)
        with socket.socket() as other:
            own.store._config = KvcrConfig.parse(own.settings | {"control_port": taken(other)})
            own.store.clear()
        assert "clear failed" in caplog.text
        assert own.restore(TOKENS) == (0, [])


def taken(listener: socket.socket) -> int:
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    port: int = listener.getsockname()[1]
    return port


class Noted(NullRecorder):
    """Notes what is counted."""

    def __init__(self) -> None:
        self.notes: list[tuple[object, ...]] = []
        self.used: dict[str, tuple[int, int]] = {}

    def backed_up(self, pool: str, *, pages: int, page_bytes: int, seconds: float) -> None:
        self.notes.append(("backed up", pool, pages, pages * page_bytes))

    def restored(
        self, pool: str, source: Source, *, pages: int, page_bytes: int, seconds: float
    ) -> None:
        self.notes.append(("restored", pool, source, pages, pages * page_bytes))

    def missed(self, reason: MissReason, *, pages: int) -> None:
        self.notes.append(("missed", reason, pages))

    def occupancy(self, pool: str, *, used_bytes: int, total_bytes: int) -> None:
        self.used[pool] = used_bytes, total_bytes

    def taken(self) -> list[tuple[object, ...]]:
        taken, self.notes = self.notes, []
        return taken


def test_what_is_stored_restored_and_missed_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted()
    monkeypatch.setattr("kvstrata.kvcr.store.recorder_for", lambda config: noted)
    with running() as source, running() as own:
        size = PAGES * Pages("kv", own.host_pool).page_bytes
        source.back_up(TOKENS)
        assert noted.taken() == [("backed up", "kv", PAGES, size)]
        used, total = noted.used["kv"]
        assert used == size < total
        source.restore(TOKENS)
        assert noted.taken() == [("restored", "kv", "local", PAGES, size)]
        own.restore(TOKENS)
        assert noted.taken() == [("missed", "absent", PAGES)]
        with carrying(hint_to(source, TOKENS)):
            own.restore(TOKENS)
            assert noted.taken() == [("restored", "kv", "peer", PAGES, size)]
            source.store.close()
            monkeypatch.setattr(own.store._probe, "reachable", lambda peer: False)
            own.restore(TOKENS)
        assert noted.taken() == [("missed", "unreachable", PAGES)]
        source.store.batch_exists(page_hashes(TOKENS))
        assert noted.taken() == [("missed", "stopped", PAGES)]
        monkeypatch.setattr(own.store._session.runner, "query", None)
        own.store.batch_exists(page_hashes(TOKENS))
        assert noted.taken() == [("missed", "error", PAGES)]
