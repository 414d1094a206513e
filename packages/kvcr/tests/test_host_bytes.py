# SPDX-License-Identifier: Apache-2.0
"""Every byte of every kind of host pool, through the store: own DRAM, and a peer process."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolTransfer

from kvstrata.kvcr.endpoints import Endpoint
from kvstrata.kvcr.hints import Hint, carrying
from kvstrata.kvcr.layout import SUPPORTED_LAYOUTS
from kvstrata_host.kvcr.replica import KINDS, PAGES, PlainReplica, page_hash, pools_of, settings
from kvstrata_host.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ALL = range(PAGES)
MODES = ("direct", "staged")


class Source:
    """A process with a store of every kind of model, each holding pages 0 to PAGES - 1."""

    def __init__(self, layout: str, kinds: Sequence[str] = KINDS) -> None:
        self.layout = layout
        ports = free_ports(2 * len(kinds))
        self._control = dict(zip(kinds, ports[::2], strict=True))
        nixl = dict(zip(kinds, ports[1::2], strict=True))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kvstrata_host.kvcr.replica",
                layout,
                *(f"{kind}:{self._control[kind]}:{nixl[kind]}" for kind in kinds),
            ],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if "ready\n" not in iter(self._process.stdout.readline, ""):
            raise AssertionError("the source did not start")

    def hint(self, kind: str, pages: Sequence[int]) -> Hint:
        hashes = frozenset(int(page_hash(page)[:16], 16) for page in pages)
        return Hint(Endpoint("127.0.0.1", self._control[kind]), hashes)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module", params=SUPPORTED_LAYOUTS)
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    source = Source(request.param)
    yield source
    source.end()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def every(replica: PlainReplica, expected: Sequence[bool]) -> dict[str, list[bool]]:
    """The same results for each pool with bytes; a logical anchor always succeeds."""
    return {
        name: list(expected) if pages.page_bytes else [True] * len(expected)
        for name, pages in replica.pools.items()
    }


@pytest.mark.parametrize("layout", SUPPORTED_LAYOUTS)
def test_pages_of_every_pool_come_back_from_own_dram(kind: str, layout: str) -> None:
    own = PlainReplica(pools_of(kind, layout), settings())
    try:
        assert own.back_up(ALL) == every(own, [True] * PAGES)
        assert own.restore(ALL) == every(own, [True] * PAGES)
        assert own.restore([0, 99]) == every(own, [True, False])
    finally:
        own.close()


def test_the_comparison_notices_one_damaged_byte(kind: str) -> None:
    own = PlainReplica(pools_of(kind, "page_first"), settings())
    try:
        own.back_up(ALL)
        for _, address, _ in own.runner._dram.pools:
            byte = ctypes.c_ubyte.from_address(address + 7)
            byte.value ^= 1
            with pytest.raises(AssertionError, match="does not hold what it should"):
                own.restore(ALL)
            byte.value ^= 1
            own.restore(ALL)
    finally:
        own.close()


@pytest.mark.parametrize("mode", MODES)
def test_pages_of_every_pool_come_from_a_peer_process(source: Source, kind: str, mode: str) -> None:
    target = PlainReplica(pools_of(kind, source.layout), settings(peer_restore_mode=mode))
    try:
        assert target.restore(ALL) == every(target, [False] * PAGES)
        with carrying(source.hint(kind, ALL)):
            assert target.restore(ALL) == every(target, [True] * PAGES)
        # What was staged stays in the own tier.
        assert target.restore(ALL) == every(target, [mode == "staged"] * PAGES)
    finally:
        target.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_page_that_the_source_lacks_costs_only_itself(source: Source, mode: str) -> None:
    target = PlainReplica(pools_of("swa", source.layout), settings(peer_restore_mode=mode))
    try:
        with carrying(source.hint("swa", [0, 1, 99])):
            assert target.restore([0, 99, 1]) == every(target, [True, False, True])
    finally:
        target.close()


@pytest.mark.parametrize(
    "difference", ["model", "layout", "tensor parallelism", "pool", "kind", "hash"]
)
def test_a_page_that_differs_in_anything_but_the_hinted_bits_never_matches(
    source: Source, difference: str
) -> None:
    layouts = {"page_first": "page_first_direct", "page_first_direct": "page_first"}
    layout = layouts[source.layout] if difference == "layout" else source.layout
    pools = pools_of("mla" if difference == "kind" else "swa", layout)
    if difference == "pool":
        pools = {"kv": pools["kv"], "draft_swa": pools["swa"]}
    changes = {"model_id": "other weights"} if difference == "model" else {}
    topology: dict[str, Any] = {"tp_size": 2} if difference == "tensor parallelism" else {}
    target = PlainReplica(pools, settings(**changes), **topology)
    try:
        with carrying(source.hint("swa", ALL)):
            if difference == "hash":
                keys = [page_hash(0)[:16] + page_hash(1)[16:]]
                kv = target.pools["kv"]
                kv.clear()
                assert target.store.batch_get_v1(keys, kv.slots([0])) == [False]
                assert kv.read(0) == bytes(kv.page_bytes)
                return
            results = target.restore(ALL)
            if difference == "pool":
                assert results.pop("kv") == [True] * PAGES
            assert set(map(tuple, results.values())) == {(False,) * PAGES}
    finally:
        target.close()


def test_a_bare_logical_anchor_proves_nothing_and_holds_up_nothing() -> None:
    own = PlainReplica(pools_of("v4", "page_first"), settings())
    try:
        own.back_up(ALL)
        hashes = [page_hash(page) for page in ALL]
        anchor = own.pools["kv"]
        assert own.store.batch_exists(hashes) == 0
        assert own.store.batch_get_v1(hashes, anchor.slots(ALL)) == [True] * PAGES
        assert own.store.batch_set_v1(hashes, anchor.slots(ALL)) == [True] * PAGES
        window = PoolTransfer("swa", keys=["?"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
        assert own.store.batch_exists_v2(hashes, [window]).kv_hit_pages == 0
        compressed = PoolTransfer("deepseek_v4_c4", hit_policy=PoolHitPolicy.ALL_PAGES)
        found = own.store.batch_exists_v2(hashes, [compressed, window])
        assert found.kv_hit_pages == PAGES
        assert found.extra_pool_hit_pages["deepseek_v4_c4"] == PAGES
    finally:
        own.close()


def test_checkpoints_of_a_trailing_pool_are_the_only_boundaries() -> None:
    own = PlainReplica(pools_of("mamba", "page_first"), settings())
    try:
        hashes = [page_hash(page) for page in range(6)]
        kv, states = own.pools["kv"], own.pools["mamba"]
        assert all(own.store.batch_set_v1(hashes, kv.slots(range(6))))
        state = PoolTransfer(
            "mamba", host_indices=states.slots([0, 1]), keys=[hashes[1], hashes[4]]
        )
        assert own.store.batch_set_v2([state]) == {"mamba": [True, True]}
        asked = PoolTransfer("mamba", keys=["?"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
        found = own.store.batch_exists_v2(hashes, [asked])
        assert found.restorable_prefix_pages == [2, 5]
        assert found.kv_hit_pages == 5
        found = own.store.batch_exists_v2(hashes[:4], [asked])
        assert (found.kv_hit_pages, found.restorable_prefix_pages) == (2, [2])
    finally:
        own.close()


@pytest.mark.parametrize("fault", ["page", "place", "short", "pool", "unknown", "no indices"])
def test_a_call_that_makes_no_sense_is_a_miss_of_every_page_before_any_io(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = PlainReplica(pools_of("swa", "page_first"), settings())
    try:
        own.back_up(ALL)
        kv, window = own.transfers({0: 0, 1: 1})
        swa = own.pools["swa"]
        if fault == "page":
            window.keys = [page_hash(0)] * 2
        elif fault == "place":
            window.host_indices = swa.slots([0, 0])
        elif fault == "short":
            window.host_indices = swa.slots([0])
        elif fault == "pool":
            window.name, window.host_indices = kv.name, kv.host_indices
        elif fault == "unknown":
            window.name = "mamba"
        else:
            window.host_indices = None
        calls: list[object] = []
        for method in ("deposit", "deliver", "claimed"):
            monkeypatch.setattr(own.runner, method, calls.append)
        expected = {str(kv.name): [False] * 2, str(window.name): [False] * 2}
        assert own.store.batch_get_v2([kv, window]) == expected
        assert own.store.batch_set_v2([kv, window]) == expected
        assert calls == []
    finally:
        own.close()


def test_pages_evicted_between_query_and_read_are_a_partial_result() -> None:
    pools = pools_of("mha", "page_first")
    page_bytes = pools["kv"].get_dummy_flat_data_page().nbytes
    own = PlainReplica(pools, settings(dram_bytes=4 * page_bytes))
    try:
        own.back_up([0, 1, 2])
        hashes = [page_hash(page) for page in (0, 1, 2)]
        assert own.store.batch_exists(hashes) == 3
        own.back_up([10, 11])
        assert own.store.batch_exists(hashes) == 0
        assert own.restore([0, 1, 2]) == {"kv": [False, True, True]}
    finally:
        own.close()


def test_a_tier_without_room_stages_what_fits_and_says_so(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    pools = pools_of("mha", source.layout)
    room = 2 * pools["kv"].get_dummy_flat_data_page().nbytes
    target = PlainReplica(pools, settings(dram_bytes=room, peer_restore_mode="staged"))
    try:
        with carrying(source.hint("mha", ALL)):
            assert target.restore(ALL) == {"kv": [True, True, False]}
        assert "Raise dram_bytes" in caplog.text
    finally:
        target.close()


def test_the_circuit_breaker_hears_how_each_restore_from_a_peer_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source("page_first", ["mha"])
    hint = source.hint("mha", [*ALL, 99])
    changes = settings(peer_restore_mode="staged")
    target = PlainReplica(pools_of("mha", "page_first"), changes)
    heard: list[str] = []

    def failed(peer: Endpoint, seconds: float) -> None:
        assert seconds >= changes["operation_timeout_seconds"]
        heard.append(f"failed {peer}")

    probe = target.store._probe
    monkeypatch.setattr(probe, "succeeded", lambda peer: heard.append(f"succeeded {peer}"))
    monkeypatch.setattr(probe, "failed", failed)
    monkeypatch.setattr(probe, "reachable", lambda peer: True)
    try:
        with carrying(hint):
            assert target.restore([0]) == {"kv": [True]}
            assert heard == [f"succeeded {hint.source}"]
            assert target.restore([99, 0]) == {"kv": [False, True]}
            assert len(heard) == 1
            source.freeze()
            assert target.restore([1, 2]) == {"kv": [False, False]}
            assert heard[1:] == [f"failed {hint.source}"]
    finally:
        source.end()
        target.close()


def test_values_of_another_type_never_match_though_they_are_stored_alike() -> None:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    def replica(dtype: torch.dtype, page_tokens: int) -> PlainReplica:
        device = MHATokenToKVPool(64, 4, dtype, 2, 8, 3, "cpu", enable_memory_saver=False)
        host = MHATokenToKVPoolHost(device, 2.0, 0, page_tokens, "page_first", pin_memory=True)
        return PlainReplica({"kv": host}, settings())

    held = replica(torch.float8_e4m3fn, 4)
    alike = replica(torch.float8_e4m3fn, 4)
    other_type = replica(torch.float8_e5m2, 4)
    other_page_size = replica(torch.float8_e4m3fn, 8)
    try:
        held.back_up(ALL)
        with carrying(held.hint(ALL)):
            assert alike.restore(ALL) == {"kv": [True] * PAGES}
            assert other_type.restore(ALL) == {"kv": [False] * PAGES}
            assert other_page_size.restore(ALL) == {"kv": [False] * PAGES}
    finally:
        for each in (held, alike, other_type, other_page_size):
            each.close()
