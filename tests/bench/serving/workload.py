# SPDX-License-Identifier: Apache-2.0
"""Requests in groups: a group shares a prefix, and each request has an end of its own.

SGLang's own bench client is not used: it cannot give each request the hint that names its source.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from demo.prompt import Tokens, draw

from kvstrata_host.server import Generation

NEW_TOKENS = 8
CONCURRENT = 2


@dataclass(frozen=True)
class Workload:
    """Token counts are per request; a prefix is a whole number of pages."""

    groups: int
    requests_per_group: int
    prefix_tokens: int
    end_tokens: int

    def warm_up(self) -> "Workload":
        """One request of the same length."""
        return dataclasses.replace(self, groups=1, requests_per_group=1)

    def prefixes(self, name: str) -> tuple[Tokens, ...]:
        """One prefix for each group; other names have others."""
        return tuple(
            draw(f"{name}/{group}", count=self.prefix_tokens, seed=0)
            for group in range(self.groups)
        )

    def prompts(self, prefixes: Sequence[Tokens]) -> tuple[tuple[Tokens, Tokens], ...]:
        """Each request's prefix and whole prompt; the first of all groups come first."""
        return tuple(
            (prefix, prefix + draw(f"{prefix[:8]}/{number}", count=self.end_tokens, seed=1))
            for number in range(self.requests_per_group)
            for prefix in prefixes
        )


@dataclass(frozen=True)
class Burst:
    """The answers to all requests, and how long all of them took together."""

    answers: tuple[Generation, ...]
    seconds: float

    @property
    def restored_tokens(self) -> int:
        """Prompt tokens that came from storage, as SGLang counts them."""
        return sum(each.cached_storage_tokens for each in self.answers)

    @property
    def tokens_per_second(self) -> float:
        """Prompt and answer tokens of all requests over the time."""
        tokens = sum(each.prompt_tokens + len(each.output_ids) for each in self.answers)
        return tokens / self.seconds


def send(
    ask: Callable[[Tokens, Tokens], Generation], prompts: Sequence[tuple[Tokens, Tokens]]
) -> Burst:
    """Ask for all prompts, so many at a time; `ask` gets the shared prefix and the whole prompt."""
    with ThreadPoolExecutor(CONCURRENT) as pool:
        began = time.monotonic()
        answers = tuple(pool.map(lambda each: ask(*each), prompts))
        return Burst(answers, time.monotonic() - began)
