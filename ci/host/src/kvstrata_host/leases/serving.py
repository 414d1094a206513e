# SPDX-License-Identifier: Apache-2.0
"""Managed pools under SGLang's own scheduling code, beside native ones under the same load."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvstrata.exact_id.discovery import managed_pools_of
from kvstrata.exact_id.transaction import ManagedPools

from ..dsv4 import PAGE_TOKENS
from .engine import VOCABULARY, Engine, Size, configured

in_process = [
    pytest.mark.integration,
    pytest.mark.usefixtures("switched_on"),
    # SGLang warns of itself where its scheduler is imported.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]

SIDES = {"swa": "swa", "c4": "full", "indexer": "full"}
"""Whose page ids each pool follows."""


@dataclass
class Load:
    """Requests that share prefixes, end near the end of a page, and answer a few tokens.

    The same seed gives the same requests, whatever engine they are for.
    """

    seed: int
    prompt_pages: int = 6
    answer_tokens: int = 6
    names: int = 0
    _stem: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._stem = self._tokens(self.prompt_pages * PAGE_TOKENS)

    def submit(self, *engines: Engine) -> None:
        """The next request, for each engine."""
        pages = self._draw.randint(1, self.prompt_pages)
        length = pages * PAGE_TOKENS - self._draw.randint(0, self.answer_tokens)
        shared = self._draw.choice((0, self._draw.randint(0, length)))
        tokens = self._stem[:shared] + self._tokens(length - shared)
        answer = self._draw.randint(1, self.answer_tokens)
        self.names += 1
        for engine in engines:
            engine.submit(f"request-{self.names}", tokens, answer_tokens=answer)

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(1, VOCABULARY) for _ in range(count)]


@dataclass(frozen=True)
class Picture:
    """What has to be the same in two engines under the same load.

    `requests` says which tokens each running request has, and in which slots.
    """

    free_ids: Mapping[str, list[int]]
    mapping: list[int]
    waiting: list[str]
    requests: Mapping[str, tuple[list[int], list[int]]]
    evictable: tuple[int, int]

    @classmethod
    def of(cls, engine: Engine) -> Picture:
        return cls(
            free_ids=engine.free_ids,
            mapping=engine.allocator.full_to_swa_index_mapping.tolist(),
            waiting=[request.rid for request in engine.waiting],
            requests={request.rid: _held(engine, request) for request in engine.running.reqs},
            evictable=(engine.cache.full_evictable_size(), engine.cache.swa_evictable_size()),
        )


def vmm_pages_of(ids: Iterable[int], page_bytes: int, vmm_page_bytes: int) -> list[int]:
    """The pages of virtual memory that row 0 and the pages `ids` lie on; ascending."""
    return sorted(
        {
            page
            for row in (0, *ids)
            for page in range(
                row * page_bytes // vmm_page_bytes,
                ((row + 1) * page_bytes - 1) // vmm_page_bytes + 1,
            )
        }
    )


def _held(engine: Engine, request: Any) -> tuple[list[int], list[int]]:
    slots = engine.requests.req_to_token[request.kv.req_pool_idx, : request.kv.kv_allocated_len]
    return list(request.origin_input_ids + request.output_ids), slots.tolist()


def contents_of(engine: Engine) -> Mapping[str, list[bytes]]:
    """All live pages of each pool, by layer."""
    live = engine.live_ids
    return {
        pool: [rows[live[side]].numpy().tobytes() for rows in engine.layers(pool)]
        for pool, side in SIDES.items()
    }


@dataclass
class Engines:
    """Makes engines, managed or native, that live until the test is over."""

    folder: Path
    undo: ExitStack

    def make(self, size: Size | None = None, *, managed: bool = True) -> Engine:
        size = size or Size()
        arguments = self.undo.enter_context(configured(size))
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("ENABLE_KVCACHED", "1" if managed else "0")
            engine = Engine(arguments, self.folder, size)
        if managed:
            self.undo.callback(pools_of(engine).close)
        return engine


@contextmanager
def engines_in(folder: Path) -> Iterator[Engines]:
    with ExitStack() as undo:
        yield Engines(folder, undo)


def pools_of(engine: Engine) -> ManagedPools:
    found = managed_pools_of(engine.pool)
    assert found is not None
    return found


def check_twins(engines: Engines, managed: Sequence[str], *, seed: int, size: Size) -> None:
    """One load on managed and on native pools: the same ids, answers, cache and bytes at each step.

    After each step, memory is mapped where a page is live and nowhere else.
    """
    twin, native = engines.make(size), engines.make(size, managed=False)
    assert managed_pools_of(native.pool) is None
    assert {pool.name for pool in pools_of(twin)} == set(managed)
    load = Load(seed, prompt_pages=size.full_pages // 8)
    peaks = dict.fromkeys(managed, 0)
    for _ in range(2):
        for _ in range(16):
            load.submit(twin, native)
        while _step(twin, native):
            assert Picture.of(twin) == Picture.of(native)
            check_memory(twin)
            for pool in pools_of(twin):
                peaks[pool.name] = max(peaks[pool.name], pool.backing.mapped_count)
        assert contents_of(twin) == contents_of(native)
    assert native.prefilled_tokens > 1.5 * native.full_tokens, "nothing had to be evicted"
    assert native.reused_tokens > 0, "the load shares no prefix"
    assert all(peak > 1 for peak in peaks.values())
    for engine in (twin, native):
        engine.flush()
        engine.check()
    assert Picture.of(twin) == Picture.of(native)
    check_memory(twin)
    assert all(pool.mapped_bytes == pool.geometry.floor_bytes for pool in pools_of(twin))


def check_memory(engine: Engine) -> None:
    """Leases are on the live pages, and memory is where these are."""
    live = engine.live_ids
    for pool in pools_of(engine):
        ids, geometry = live[SIDES[pool.name]], pool.geometry
        assert pool.ledger.leased_ids.tolist() == ids
        assert pool.backing.mapped_pages.tolist() == vmm_pages_of(
            ids, geometry.page_bytes, geometry.vmm_page_bytes
        )


def _step(*engines: Engine) -> list[str]:
    """One step of each, with SGLang's checks; they must compute the same requests."""
    computed = []
    for engine in engines:
        computed.append([request.rid for request in engine.step()])
        engine.check()
    assert all(each == computed[0] for each in computed)
    return computed[0]
