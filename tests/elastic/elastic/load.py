# SPDX-License-Identifier: Apache-2.0
"""A load in waves, through SGLang's allocator as its scheduler would use it."""

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from kvstrata.exact_id.ownership import SWA
from kvstrata_host.dsv4 import PAGE_TOKENS

from .contents import Contents
from .model import COMPRESSED, WINDOW_TOKENS, Model

STEP_TOKENS = 16
"""Tokens that every running request decodes in a step."""
_BATCH = 12
"""Requests that are admitted in a step at most."""


@dataclass(frozen=True)
class Wave:
    """Arrivals: the upper half of a sine, `crest` requests a step, then as long a pause.

    Prompts and answers are drawn as multiples of STEP_TOKENS.
    """

    period_steps: int
    crest: int
    prompt_tokens: tuple[int, int] = (256, 2048)
    answer_tokens: tuple[int, int] = (128, 320)

    def arrivals(self, step: int) -> int:
        return round(self.crest * max(0.0, math.sin(2 * math.pi * step / self.period_steps)))


@dataclass
class Request:
    """Page ids in the order of the tokens; the first `retired` have left the window."""

    number: int
    prompt_tokens: int
    answer_tokens: int
    tokens: int = 0
    full: list[int] = field(default_factory=list)
    swa: list[int] = field(default_factory=list)
    retired: int = 0

    @property
    def live(self) -> list[int]:
        """Its sliding-window pages that are still held."""
        return self.swa[self.retired :]

    @property
    def is_done(self) -> bool:
        return self.tokens >= self.prompt_tokens + self.answer_tokens


@dataclass
class Load:
    """The requests. Every page is filled with its owner's number, and compared before it goes.

    A page counts once for each pool. `history` is the compressed pages without a window.
    """

    model: Model
    wave: Wave
    seed: int
    running: list[Request] = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)
    requests: int = 0
    finished: int = 0
    retracted: int = 0
    pages_leased: int = 0
    pages_retired: int = 0
    history_compared: int = 0
    history_damaged: int = 0
    misses: int = 0
    misses_with_traces: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self.contents = Contents(self.model)

    def step(self, number: int, *, arrivals: bool = True) -> None:
        """Decode, end and retire what runs; then admit as many as there is memory for."""
        self._decode()
        self._finish([request for request in self.running if request.is_done])
        for request in self.running:
            self._retire(request)
        for _ in range(self.wave.arrivals(number) if arrivals else 0):
            self.waiting.append(self._drawn())
        self._admit()

    def live_ids(self, name: str) -> Iterator[int]:
        """The ids of all running requests in the pool `name`, by the load's own books."""
        return (
            page
            for request in self.running
            for page in (request.live if name == SWA else request.full)
        )

    def _drawn(self) -> Request:
        self.requests += 1
        prompt, answer = (
            STEP_TOKENS * self._draw.randint(low // STEP_TOKENS, high // STEP_TOKENS)
            for low, high in (self.wave.prompt_tokens, self.wave.answer_tokens)
        )
        return Request(self.requests, prompt, answer)

    def _decode(self) -> None:
        # Only the first token of a page needs an allocation; the other steps are skipped over.
        while crossing := [each for each in self.running if each.tokens % PAGE_TOKENS == 0]:
            if self._open_pages(crossing):
                break
            self._retract(self.running[-1])
        for request in self.running:
            request.tokens += STEP_TOKENS

    def _open_pages(self, requests: Sequence[Request]) -> bool:
        lengths = torch.tensor([request.tokens + 1 for request in requests])
        last = torch.tensor([(each.full[-1] + 1) * PAGE_TOKENS - 1 for each in requests])
        taken = self._allocate(lambda: self.model.allocator.alloc_decode(lengths, lengths, last))
        if taken is None:
            return False
        for request, first in zip(requests, taken.tolist(), strict=True):
            self._give(request, [first // PAGE_TOKENS])
        return True

    def _admit(self) -> None:
        room = self.model.allocator.swa_available_size() // PAGE_TOKENS
        batch: list[Request] = []
        while self.waiting and len(batch) < _BATCH and _pages(self.waiting[0]) <= room:
            room -= _pages(self.waiting[0])
            batch.append(self.waiting.popleft())
        if batch and not self._prefill(batch):
            self.waiting.extendleft(reversed(batch))
        elif self.waiting and _pages(self.waiting[0]) > room and self._prefill([self.waiting[0]]):
            # It was said not to fit.
            self.waiting.popleft()

    def _prefill(self, batch: Sequence[Request]) -> bool:
        prefixes = torch.zeros(len(batch), dtype=torch.int64)
        lengths = torch.tensor([request.prompt_tokens for request in batch])
        last = torch.full((len(batch),), -1, dtype=torch.int64)
        count = int(lengths.sum())
        taken = self._allocate(
            lambda: self.model.allocator.alloc_extend(
                prefixes, prefixes, lengths, lengths, last, count
            )
        )
        if taken is None:
            return False
        for request, own in zip(batch, torch.split(taken, lengths.tolist()), strict=True):
            request.tokens = request.prompt_tokens
            self._give(request, (own[::PAGE_TOKENS] // PAGE_TOKENS).tolist())
            self.running.append(request)
        return True

    def _allocate(self, allocate: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        before = self.model.picture()
        taken = allocate()
        if taken is None:
            self.misses += 1
            self.misses_with_traces += self.model.picture() != before
        return taken

    def _give(self, request: Request, full: Sequence[int]) -> None:
        firsts = torch.tensor(full) * PAGE_TOKENS
        swa = (self.model.allocator.full_to_swa_index_mapping[firsts] // PAGE_TOKENS).tolist()
        request.full += full
        request.swa += swa
        self.pages_leased += len(swa) + len(COMPRESSED) * len(full)
        self.contents.fill(request.number, SWA, swa)
        for name in COMPRESSED:
            self.contents.fill(request.number, name, full)

    def _retire(self, request: Request) -> None:
        """Give back the pages of which no token is in the window any more."""
        gone = max(0, request.tokens - WINDOW_TOKENS) // PAGE_TOKENS
        if gone > request.retired:
            self.contents.compare(request.number, SWA, request.swa[request.retired : gone])
            pages = request.full[request.retired : gone]
            self.model.allocator.free_swa_segment(_tokens(pages), start_pos=0)
            self.pages_retired += len(pages)
            request.retired = gone

    def _finish(self, ended: Sequence[Request]) -> None:
        self.finished += len(ended)
        self._free(ended)

    def _retract(self, request: Request) -> None:
        """Start a request anew later, as SGLang does when a decode finds no memory."""
        self.retracted += 1
        self._free([request])
        self.waiting.appendleft(
            Request(request.number, request.prompt_tokens, request.answer_tokens)
        )

    def _free(self, requests: Sequence[Request]) -> None:
        """Give back all pages, in one group as SGLang does for a batch."""
        if not requests:
            return
        allocator = self.model.allocator
        allocator.free_group_begin()
        for request in requests:
            self._compare(request)
            allocator.free_full_segment(_tokens(request.full[: request.retired]), start_pos=0)
            allocator.free_segment(_tokens(request.full[request.retired :]), start_pos=0)
        allocator.free_group_end()
        gone = {request.number for request in requests}
        self.running = [request for request in self.running if request.number not in gone]

    def _compare(self, request: Request) -> None:
        self.contents.compare(request.number, SWA, request.live)
        history, rest = request.full[: request.retired], request.full[request.retired :]
        for name in COMPRESSED:
            self.contents.compare(request.number, name, rest)
            self.history_damaged += self.contents.compare(request.number, name, history)
            self.history_compared += len(history)


def _pages(request: Request) -> int:
    return -(-request.prompt_tokens // PAGE_TOKENS)


def _tokens(pages: Sequence[int]) -> torch.Tensor:
    """All tokens of pages, in their order."""
    firsts = torch.tensor(pages, dtype=torch.int64) * PAGE_TOKENS
    return (firsts[:, None] + torch.arange(PAGE_TOKENS)).reshape(-1)
