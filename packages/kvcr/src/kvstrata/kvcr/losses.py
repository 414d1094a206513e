# SPDX-License-Identifier: Apache-2.0
"""Work that SGLang's settings make it throw away: foreseen at start, counted when it happens."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .metrics import Recorder
from .rate_limit import RateLimit

if TYPE_CHECKING:
    from sglang.srt.mem_cache.pool_host import HostPoolGroup
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

logger = logging.getLogger(__name__)

_WAITING = "--hicache-storage-prefetch-policy wait_complete waits for it"


@dataclass(frozen=True)
class PoolSize:
    """Tokens, or states, that a host pool and its device pool have room for."""

    name: str
    host: int
    device: int


@dataclass(frozen=True)
class PrefetchDeadline:
    """How long SGLang waits for a restore of so many tokens."""

    policy: str
    base_seconds: float
    seconds_per_ki_token: float

    def seconds(self, tokens: int) -> float:
        if self.policy == "best_effort":
            return 0.0
        if self.policy == "wait_complete":
            return math.inf
        return self.base_seconds + self.seconds_per_ki_token * tokens / 1024


def small_pools(sizes: Iterable[PoolSize]) -> str:
    """A warning of host pools that can stop taking backups, or an empty text."""
    small = [size for size in sizes if size.host <= size.device]
    if not small:
        return ""
    listed = ", ".join(f"{each.name} {each.host} of {each.device}" for each in small)
    return (
        f"host pools are not larger than their device pools ({listed}). Once they are full of what "
        "is still on the device, SGLang backs up nothing more. Raise --hicache-ratio above 1, or "
        "--hicache-size."
    )


def short_deadline(deadline: PrefetchDeadline, operation_seconds: float) -> str:
    """A warning of restores that come too late for SGLang, or an empty text.

    Args:
        operation_seconds: how long a restore may take before KVCR cancels it.
    """
    if deadline.seconds(0) >= operation_seconds:
        return ""
    if deadline.policy == "best_effort":
        return (
            "the prefetch policy best_effort does not wait for a restore: what has not arrived "
            f"when the request can run is thrown away. {_WAITING}."
        )
    return (
        f"the prefetch policy {deadline.policy} waits {deadline.base_seconds:g} s and "
        f"{deadline.seconds_per_ki_token:g} s per 1,024 tokens for a restore, which may take "
        f"operation_timeout_seconds={operation_seconds:g}: what arrives later is thrown away. "
        f"{_WAITING}, and so does a prefetch_timeout_base of {operation_seconds:g} in the extra "
        "config."
    )


def warn(cache: "UnifiedRadixCache", operation_seconds: float) -> None:
    """Say once, with numbers, what the settings of this cache will lose."""
    deadline = PrefetchDeadline(
        cache.prefetch_stop_policy,
        cache.prefetch_timeout_base,
        cache.prefetch_timeout_per_page * 1024 / cache.page_size,
    )
    warnings = [short_deadline(deadline, operation_seconds)]
    # In buffer mode the host pool only passes pages on, and is small by intent.
    if cache.host_memory_mode != "buffer_only":
        warnings.append(small_pools(_sizes(cache.cache_controller.mem_pool_host)))
    for warning in filter(None, warnings):
        logger.warning("kvcr: %s", warning)


def _sizes(group: "HostPoolGroup") -> list[PoolSize]:
    sizes = []
    for entry in group.entries:
        # Pools without bytes of their own, such as a logical anchor, have no such sizes.
        host = getattr(entry.host_pool, "size", None)
        device = getattr(entry.host_pool, "device_capacity_tokens", None)
        device = device or getattr(entry.device_pool, "size", None)
        if isinstance(host, int) and isinstance(device, int):
            sizes.append(PoolSize(str(entry.name), host, device))
    return sizes


@dataclass
class Discards:
    """Restored pages that SGLang had stopped waiting for: counted, and said now and then."""

    recorder: Recorder
    _limit: RateLimit = field(default_factory=lambda: RateLimit(10.0), init=False)
    _unsaid: int = field(default=0, init=False)

    def note(self, *, restored_pages: int, used_pages: int) -> None:
        """Take note of an operation that SGLang had ended before its reads had.

        Args:
            restored_pages: pages that the reads of the operation filled.
            used_pages: pages that SGLang had heard of when it ended the operation.
        """
        pages = restored_pages - used_pages
        if pages <= 0:
            return
        self.recorder.discarded(pages=pages)
        self._unsaid += pages
        if self._limit.admits():
            logger.warning(
                "kvcr discarded pages=%d, restored after SGLang had stopped waiting for them: the "
                "request was aborted, or the prefetch policy has too short a deadline. %s.",
                self._unsaid,
                _WAITING,
            )
            self._unsaid = 0
