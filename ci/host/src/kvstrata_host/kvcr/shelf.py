# SPDX-License-Identifier: Apache-2.0
"""A store that holds pages by name alone and can answer wrongly, which the real one cannot."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolTransfer, PoolTransferResult

from kvstrata.kvcr.boundaries import PoolPresence, legal_boundaries
from kvstrata.kvcr.contract import ZeroCopyStorage
from kvstrata.kvcr.extension import ENABLEMENT
from kvstrata.kvcr.hints import Hint, HintPolicy, carried
from kvstrata.kvcr.losses import Discards
from kvstrata.kvcr.metrics import NullRecorder

Fault = Callable[[Any], Any]
"""Makes another answer of an honest one, or raises."""

PAGES_KV = "kv"


class Counting(NullRecorder):
    """Counts the pages that were restored for nobody."""

    def __init__(self) -> None:
        self.discarded_pages = 0

    def discarded(self, *, pages: int) -> None:
        self.discarded_pages += pages


class Shelf(ZeroCopyStorage):
    """Answers as KvcrStore does, but for its `faults`, by the name of a call."""

    operation_timeout_seconds = 1.0
    ways = ENABLEMENT

    def __init__(self, storage_config: object, model_path: str) -> None:
        self.held: dict[str, set[str]] = defaultdict(set)
        self.faults: dict[str, Fault] = {}
        self.calls: list[str] = []
        self.hints: list[tuple[str, Hint | None]] = []
        self.asked: list[list[PoolTransfer]] = []
        self.read: list[object] = []
        self.is_open = False
        self.recorder = Counting()
        self.discards = Discards(self.recorder)
        self._policy = HintPolicy(trusted=True)

    def start(self) -> None:
        self.is_open = self._answer("start", True)

    def close(self) -> None:
        self.is_open = False

    def accept_hint(self, raw: object) -> Hint | None:
        self.read.append(raw)
        return self._policy.accept(raw)

    def _answer(self, call: str, honest: Any) -> Any:
        self.calls.append(call)
        hint = carried()
        self.hints.append((call, hint if isinstance(hint, Hint) else None))
        fault = self.faults.get(call)
        return honest if fault is None else fault(honest)

    def batch_exists_v2(
        self,
        keys: Sequence[str],
        pool_transfers: Sequence[PoolTransfer] | None = None,
        extra_info: object = None,
    ) -> Any:
        windows = {PAGES_KV: None} | {
            str(each.name): len(each.keys or [0])
            if each.hit_policy == PoolHitPolicy.TRAILING_PAGES
            else None
            for each in pool_transfers or ()
        }
        self.asked.append(list(pool_transfers or ()))
        pools = [
            PoolPresence([key in self.held[name] for key in keys], window)
            for name, window in windows.items()
        ]
        legal = legal_boundaries(len(keys), pools)
        return self._answer("batch_exists_v2", PoolTransferResult(max(legal, default=0), {}, legal))

    def batch_get_v1(
        self, keys: Sequence[str], host_indices: torch.Tensor, extra_info: object = None
    ) -> Any:
        return self._answer("batch_get_v1", self._found(PAGES_KV, keys))

    def batch_get_v2(self, transfers: Sequence[PoolTransfer], extra_info: object = None) -> Any:
        found = {str(each.name): self._found(each.name, each.keys or []) for each in transfers}
        return self._answer("batch_get_v2", found)

    def batch_set_v1(
        self, keys: Sequence[str], host_indices: torch.Tensor, extra_info: object = None
    ) -> Any:
        return self._answer("batch_set_v1", self._put(PAGES_KV, keys))

    def batch_set_v2(self, transfers: Sequence[PoolTransfer], extra_info: object = None) -> Any:
        put = {str(each.name): self._put(each.name, each.keys or []) for each in transfers}
        return self._answer("batch_set_v2", put)

    def _found(self, pool: str, keys: Sequence[str]) -> list[bool]:
        named_once = len(set(keys)) == len(keys)
        return [named_once and key in self.held[str(pool)] for key in keys]

    def _put(self, pool: str, keys: Sequence[str]) -> list[bool]:
        if len(set(keys)) != len(keys):
            return [False] * len(keys)
        self.held[str(pool)].update(keys)
        return [True] * len(keys)

    # What the contract has for backends that copy pages one by one.

    def exists(self, key: str) -> bool:
        return key in self.held[PAGES_KV]


def raising(answer: Any) -> Any:
    raise RuntimeError("a fault of the store")


def _changed(change: Callable[[list[bool]], Any]) -> Fault:
    """A fault that changes each list of results in an answer."""
    return lambda answer: (
        {pool: change(results) for pool, results in answer.items()}
        if isinstance(answer, dict)
        else change(answer)
    )


BAD_RESULTS: dict[str, Fault] = {
    "raises": raising,
    "None": lambda answer: None,
    "of-None": _changed(lambda results: [None] * len(results)),
    "one-None": _changed(lambda results: [None, *results[1:]]),
    "short": _changed(lambda results: results[:-1]),
    "long": _changed(lambda results: [*results, True]),
    "empty": _changed(lambda results: []),
    "ints": _changed(lambda results: [1] * len(results)),
    "a-number": _changed(len),
    "all-false": _changed(lambda results: [False] * len(results)),
}
"""Each way in which the results of a read or a write can be no success."""

BAD_DICTS: dict[str, Fault] = BAD_RESULTS | {"missing": lambda answer: {}}


def _boundaries(pages: Any) -> Fault:
    return lambda answer: PoolTransferResult(answer.kv_hit_pages, {}, pages)


BAD_QUERIES: dict[str, Fault] = {
    "raises": raising,
    "None": lambda answer: None,
    "no-boundaries": _boundaries(None),
    "a-count": _boundaries(3),
    "of-strings": _boundaries(["3"]),
    "of-bools": _boundaries([True]),
    "beyond-the-span": _boundaries([1000]),
    "negative": _boundaries([-1]),
}
"""Each way in which the answer of a query can be no answer."""
