# SPDX-License-Identifier: Apache-2.0
"""What a hint costs, against what SGLang spends on hashing the pages that it names."""

import json
import random
from array import array
from collections.abc import Sequence
from types import SimpleNamespace

from kvstrata.kvcr import hooks
from kvstrata.kvcr.hints import HintPolicy

# Brings SGLang up on this machine, so it comes before SGLang.
from kvstrata_host.rank import bring_up

# isort: split
from hicache import PAGE_TOKENS
from paired import Ratio, in_turn, seconds
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str

_LIMIT = 0.1
_VOCABULARY = 100_000
_REPEATS = 1_000


class HintError(RuntimeError):
    """The hint did not arrive or was not accepted."""


def measure(rounds: int) -> tuple[Ratio, Ratio]:
    """The scheduler thread's share for a hint of 1,024 pages; reading one of 4,096."""
    bring_up()
    return _scheduling(1024, rounds), _reading(4096, rounds)


def _scheduling(pages: int, rounds: int) -> Ratio:
    tokens = _tokens(pages)
    raw = _hint(_hashes(tokens))

    def original(scheduler: object, request: object) -> None:
        del scheduler
        hooks.keep_hint_on_operation(None, SimpleNamespace())

    def carry(number: int) -> float:
        parameters = SimpleNamespace(custom_params={"kv_hints": raw})
        requests = [SimpleNamespace(sampling_params=parameters) for _ in range(_REPEATS)]

        def prefetch_all() -> None:
            for request in requests:
                hooks.carry_hint_of_request(original, None, request)

        return seconds(prefetch_all) / _REPEATS

    ours, theirs = in_turn(rounds, carry, lambda number: seconds(lambda: _hashes(tokens)))
    return Ratio(
        f"scheduler thread, hint of {pages:,} pages", ours, theirs, peer=_peer(), limit=_LIMIT
    )


def _reading(pages: int, rounds: int) -> Ratio:
    """No limit: this is off the scheduler thread, and JSON of this size cannot be read as fast."""
    tokens = _tokens(pages)
    hashes = _hashes(tokens)
    raw = _hint(hashes)
    policy = HintPolicy(trusted=True)
    accepted = policy.accept(raw)
    if accepted is None or accepted.hashes != {int(each[:16], 16) for each in hashes}:
        raise HintError(f"a hint of {pages} pages was not accepted as it was written")
    ours, theirs = in_turn(
        rounds,
        lambda number: seconds(lambda: policy.accept(raw)),
        lambda number: seconds(lambda: _hashes(tokens)),
    )
    return Ratio(
        f"storage thread, reading a hint of {pages:,} pages",
        ours,
        theirs,
        peer=_peer(),
        limit=None,
    )


def _peer() -> str:
    return f"SGLang's hashing of those pages, {PAGE_TOKENS} tokens each"


def _tokens(pages: int) -> RadixKey:
    """A prompt in the form in which SGLang hashes it."""
    draw = random.Random(pages)
    return RadixKey(array("q", (draw.randrange(_VOCABULARY) for _ in range(pages * PAGE_TOKENS))))


def _hashes(tokens: RadixKey) -> list[str]:
    hashes: list[str] = get_storage_hash_str(tokens, None, page_size=PAGE_TOKENS)
    return hashes


def _hint(hashes: Sequence[str]) -> str:
    payload = {
        "source_control_endpoint": "tcp://192.0.2.1:28500",
        "block_hashes": [int(each[:16], 16) for each in hashes],
        "mode": "copy",
    }
    action = {
        "action_id": "1",
        "action_type": "kv.fetch",
        "action_version": "1.0",
        "payload": payload,
    }
    return json.dumps({"protocol_version": "0.1", "message_id": "1", "actions": [action]})
