# SPDX-License-Identifier: Apache-2.0
"""A drawn load for `dsv4_engine`, and what two engines under the same load have in common."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .dsv4 import PAGE_TOKENS
from .dsv4_engine import VOCABULARY, Engine


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

    `contents` are the bytes of all live pages of each pool, by layer; `requests` says which tokens
    each running request has, and in which slots.
    """

    free_ids: Mapping[str, list[int]]
    mapping: list[int]
    waiting: list[str]
    requests: Mapping[str, tuple[list[int], list[int]]]
    evictable: tuple[int, int]
    contents: Mapping[str, list[Any]]

    @classmethod
    def of(cls, engine: Engine) -> Picture:
        live = engine.live_ids
        sides = {"swa": "swa", "c4": "full", "indexer": "full"}
        return cls(
            free_ids=engine.free_ids,
            mapping=engine.allocator.full_to_swa_index_mapping.tolist(),
            waiting=[request.rid for request in engine.waiting],
            requests={request.rid: _held(engine, request) for request in engine.running.reqs},
            evictable=(engine.cache.full_evictable_size(), engine.cache.swa_evictable_size()),
            contents={
                pool: [rows[live[side]].numpy().tobytes() for rows in engine.layers(pool)]
                for pool, side in sides.items()
            },
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
