# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage contract, as far as it is the same for every zero-copy backend."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contained:
    """Logs an exception of its block instead of raising it.

    SGLang's storage threads die on any exception and leave the other ranks waiting.
    """

    call: str
    on_failure: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        logger.error("kvcr %s failed, taken for a miss", self.call, exc_info=error)
        self.on_failure()
        return True


class ZeroCopyStorage(HiCacheStorage):  # type: ignore[misc]  # SGLang ships no types
    """A backend that reads and writes host pages in place.

    The one-page calls of the contract are never made to it; they find and keep nothing.
    """

    def get(self, key: str, target_location: object = None, target_sizes: object = None) -> None:
        return None

    def batch_get(
        self, keys: Sequence[str], target_locations: object = None, target_sizes: object = None
    ) -> list[None]:
        return [None] * len(keys)

    def set(
        self,
        key: str,
        value: object = None,
        target_location: object = None,
        target_sizes: object = None,
    ) -> bool:
        return False

    def batch_set(
        self,
        keys: Sequence[str],
        values: object = None,
        target_locations: object = None,
        target_sizes: object = None,
    ) -> bool:
        return False
