# SPDX-License-Identifier: Apache-2.0
"""A run of the demo as it should be, for tests that make one thing about it go wrong."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from demo.answer import Answer
from demo.outcome import Outcome
from demo.scene import Scene, SceneId, compared
from demo.serverlog import Restore

from kvstrata_host.server import Generation

PROMPT_TOKENS = 2048
RESTORED_TOKENS = 2032
PAGE_SIZE_TOKENS = 16


def answer(*, own: int = 0, peer: int = 0, ids: tuple[int, ...] = (5, 6), first_s: float) -> Answer:
    """An answer after restoring this many tokens from own DRAM and from a peer."""
    pages = (own + peer) // PAGE_SIZE_TOKENS
    restore = Restore(
        rank=0,
        pages=pages,
        restored=pages,
        from_own=own // PAGE_SIZE_TOKENS,
        from_peer=peer // PAGE_SIZE_TOKENS,
        duration_ms=50.0,
    )
    generation = Generation(
        output_ids=ids,
        output_logprobs=(-1.0, -2.0) if ids == (5, 6) else (-3.0, -0.5),
        prompt_tokens=PROMPT_TOKENS,
        cached_tokens=own + peer,
        cached_device_tokens=0,
        cached_host_tokens=0,
        cached_storage_tokens=own + peer,
        time_to_first_token_s=first_s,
        latency_s=first_s + 1.0,
    )
    return Answer(generation, (restore,) if pages else (), PAGE_SIZE_TOKENS)


@pytest.fixture
def outcome() -> Outcome:
    reference = answer(first_s=3.0)
    answers: dict[SceneId, tuple[str, Answer]] = {
        "first-contact": ("B", answer(peer=RESTORED_TOKENS, first_s=1.2)),
        "computed": ("A", reference),
        "from-peer": ("B", answer(peer=RESTORED_TOKENS, first_s=0.6)),
        "recomputed": ("B", answer(first_s=3.0)),
        "from-own-dram": ("B", answer(own=RESTORED_TOKENS, first_s=0.5)),
        "damaged": ("D", answer(peer=RESTORED_TOKENS, ids=(9, 9), first_s=0.6)),
        "dead-peer": ("B", answer(first_s=3.1)),
    }
    scenes = tuple(
        Scene(name, replica, f"Title of {name}", "what happens", given, compared(given, reference))
        for name, (replica, given) in answers.items()
    )
    return Outcome(scenes, survivor_healthy=True, dead_peer_noticed=True, start_s=60.0, play_s=50.0)


@pytest.fixture
def peer_answer(outcome: Outcome) -> Answer:
    return outcome["from-peer"].answer
