# SPDX-License-Identifier: Apache-2.0
"""One answer of a replica: its tokens, where the prompt's KV came from, how long each part took."""

from dataclasses import dataclass
from typing import Literal

from kvstrata_host.server import Generation

from .serverlog import Restore


@dataclass(frozen=True)
class Sources:
    """Where the KV of the prompt came from, in tokens.

    The counts of computed, device, host and storage (`own_dram` and `peer_dram` together) are
    SGLang's; the backend's log says which part of storage was a peer's.
    """

    computed: int
    device: int
    host: int
    own_dram: int
    peer_dram: int

    @property
    def total(self) -> int:
        return self.computed + self.device + self.host + self.own_dram + self.peer_dram

    @property
    def storage(self) -> int:
        return self.own_dram + self.peer_dram


@dataclass(frozen=True)
class Timing:
    """The parts of a request, in seconds; `prefill` is the first token's time without `restore`."""

    restore_s: float
    prefill_s: float
    decode_s: float

    @property
    def first_token_s(self) -> float:
        return self.restore_s + self.prefill_s

    @property
    def total_s(self) -> float:
        return self.first_token_s + self.decode_s


@dataclass(frozen=True)
class Answer:
    """SGLang's answer, and what the backend of each rank logged while it was made.

    Every rank holds its share of each page, so what a server restored is what all ranks did.
    """

    generation: Generation
    restores: tuple[Restore, ...]
    page_size_tokens: int
    ranks: int = 1

    @property
    def logged_tokens(self) -> int:
        """Tokens in the pages that the backend says it restored."""
        return min(self._tokens("restored"))

    @property
    def counts_agree(self) -> bool:
        """Whether SGLang counted exactly the tokens whose pages every rank says it restored."""
        own, peer = self._tokens("from_own"), self._tokens("from_peer")
        located = [sum(each) for each in zip(own, peer, strict=True)]
        counted = [self.generation.cached_storage_tokens] * self.ranks
        whole = self.sources.total == self.generation.prompt_tokens
        return self._tokens("restored") == located == counted and whole

    def _tokens(self, count: Literal["restored", "from_own", "from_peer"]) -> list[int]:
        """One of the backend's counts for each rank, in tokens."""
        return [
            sum(getattr(each, count) for each in self.restores if each.rank == rank)
            * self.page_size_tokens
            for rank in range(self.ranks)
        ]

    @property
    def sources(self) -> Sources:
        counted = self.generation
        peer = min(*self._tokens("from_peer"), counted.cached_storage_tokens)
        return Sources(
            computed=counted.prompt_tokens - counted.cached_tokens,
            device=counted.cached_device_tokens,
            host=counted.cached_host_tokens,
            own_dram=counted.cached_storage_tokens - peer,
            peer_dram=peer,
        )

    @property
    def timing(self) -> Timing:
        slowest_ms = max(
            sum(each.duration_ms for each in self.restores if each.rank == rank)
            for rank in range(self.ranks)
        )
        restore_s = slowest_ms / 1000
        first_s = self.generation.time_to_first_token_s
        restore_s = min(restore_s, first_s)
        return Timing(
            restore_s=restore_s,
            prefill_s=first_s - restore_s,
            decode_s=self.generation.latency_s - first_s,
        )
