# SPDX-License-Identifier: Apache-2.0
"""One answer of a replica: its tokens, where the prompt's KV came from, how long each part took."""

from dataclasses import dataclass

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
    """SGLang's answer, and what the backend logged while it was made."""

    generation: Generation
    restores: tuple[Restore, ...]
    page_size_tokens: int

    @property
    def logged_own_tokens(self) -> int:
        return sum(each.from_own for each in self.restores) * self.page_size_tokens

    @property
    def logged_peer_tokens(self) -> int:
        return sum(each.from_peer for each in self.restores) * self.page_size_tokens

    @property
    def logged_tokens(self) -> int:
        """Tokens in the pages that the backend says it restored."""
        return sum(each.restored for each in self.restores) * self.page_size_tokens

    @property
    def counts_agree(self) -> bool:
        """Whether SGLang counted exactly the tokens whose pages the backend says it restored."""
        located = self.logged_own_tokens + self.logged_peer_tokens
        counted = self.generation.cached_storage_tokens
        whole = self.sources.total == self.generation.prompt_tokens
        return self.logged_tokens == located == counted and whole

    @property
    def sources(self) -> Sources:
        counted = self.generation
        peer = min(self.logged_peer_tokens, counted.cached_storage_tokens)
        return Sources(
            computed=counted.prompt_tokens - counted.cached_tokens,
            device=counted.cached_device_tokens,
            host=counted.cached_host_tokens,
            own_dram=counted.cached_storage_tokens - peer,
            peer_dram=peer,
        )

    @property
    def timing(self) -> Timing:
        restore_s = sum(each.duration_ms for each in self.restores) / 1000
        first_s = self.generation.time_to_first_token_s
        restore_s = min(restore_s, first_s)
        return Timing(
            restore_s=restore_s,
            prefill_s=first_s - restore_s,
            decode_s=self.generation.latency_s - first_s,
        )
