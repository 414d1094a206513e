# SPDX-License-Identifier: Apache-2.0
"""How much memory a pool may map, as operators set it with kvcached's tools."""

import atexit
import fcntl
import mmap
from dataclasses import dataclass
from enum import Enum
from itertools import chain, count

from .geometry import PoolGeometry

# The words of kvcached's MemInfoStruct.
_TOTAL = 0
_USED = 1

_names: set[str] = set()


class LimitStatus(Enum):
    APPLIED = "applied"
    """The pool is within the limit."""
    DEFERRED = "deferred"
    """More is mapped than the limit allows; nothing new is mapped until enough was freed."""
    STALE = "stale"
    """Refused: a later revision is in force."""
    CONFLICT = "conflict"
    """Refused: another limit with the same revision is in force."""


@dataclass(frozen=True)
class LimitState:
    """The limit in force and what came of the last request.

    `effective_bytes` is the limit in whole VMM pages of all layers, and at least what row 0 takes.
    """

    status: LimitStatus
    limit_bytes: int
    effective_bytes: int
    revision: int
    mapped_bytes: int


class MemoryLimit:
    """A revisioned limit of one pool; at first the whole pool, with revision 0."""

    def __init__(self, geometry: PoolGeometry) -> None:
        self._bundle_bytes = geometry.bundle_bytes
        self._least_count = geometry.floor_bytes // geometry.bundle_bytes
        self._most_count = geometry.vmm_page_count
        self._page_count = self._most_count
        self._limit_bytes = geometry.virtual_bytes
        self._revision = 0

    @property
    def page_count(self) -> int:
        """How many VMM pages may be mapped."""
        return self._page_count

    @property
    def effective_bytes(self) -> int:
        return self._page_count * self._bundle_bytes

    @property
    def revision(self) -> int:
        return self._revision

    def set(self, limit_bytes: int, *, revision: int, mapped_bytes: int) -> LimitState:
        """Put a limit in force, unless its revision is older or taken by another limit."""
        if limit_bytes < 0 or revision < 0:
            raise ValueError(
                f"limit_bytes is {limit_bytes} and revision is {revision}; both must be at least 0"
            )
        if revision < self._revision:
            return self._state(LimitStatus.STALE, mapped_bytes)
        if revision == self._revision and limit_bytes != self._limit_bytes:
            return self._state(LimitStatus.CONFLICT, mapped_bytes)
        self._limit_bytes, self._revision = limit_bytes, revision
        allowed = min(limit_bytes // self._bundle_bytes, self._most_count)
        self._page_count = max(allowed, self._least_count)
        return self.state(mapped_bytes)

    def state(self, mapped_bytes: int) -> LimitState:
        within = mapped_bytes <= self.effective_bytes
        return self._state(LimitStatus.APPLIED if within else LimitStatus.DEFERRED, mapped_bytes)

    def _state(self, status: LimitStatus, mapped_bytes: int) -> LimitState:
        return LimitState(
            status, self._limit_bytes, self.effective_bytes, self._revision, mapped_bytes
        )


class Segment:
    """A pool's shared-memory segment: what `kvctl` and `kvtop` list, and where `kvctl` sets limits.

    Its layout and its lock are kvcached's. It is removed by `close` and when Python ends.
    """

    def __init__(self, name: str, limit_bytes: int) -> None:
        from kvcached.cli.utils import MemInfoStruct, get_ipc_path, init_kv_cache_limit
        from kvcached.utils import IPCSegmentCleanup

        self.name = name
        _names.add(name)
        init_kv_cache_limit(name, limit_bytes)
        path = get_ipc_path(name)
        self._cleanup = IPCSegmentCleanup(path)
        # Kept open: both words are used on the way of an allocation.
        self._file = open(path, "r+b")  # noqa: SIM115, PTH123 - closed by close
        self._memory = mmap.mmap(self._file.fileno(), MemInfoStruct.SHM_SIZE)
        self._words = memoryview(self._memory).cast("q")
        self._published = 0
        atexit.register(self.close)

    @property
    def limit_bytes(self) -> int:
        """The limit that is asked for now; one aligned word, read without the lock."""
        return self._words[_TOTAL]

    def publish(self, used_bytes: int) -> None:
        """Show `used_bytes` as the memory in use."""
        if used_bytes == self._published:
            return
        # kvctl rewrites all words while it holds this lock.
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self._words[_USED] = used_bytes
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._published = used_bytes

    def close(self) -> None:
        """Remove the segment; its limit is the last one from then on."""
        atexit.unregister(self.close)
        _names.discard(self.name)
        self._cleanup.unlink()
        self._file.close()


def segment_name(pool: str) -> str:
    """The name of a pool's segment, such as kvcached_SGLang_4711_swa."""
    from kvcached.utils import DEFAULT_IPC_NAME

    return f"{DEFAULT_IPC_NAME}_{pool}"


def free_segment_name(pool: str) -> str:
    """A name that no other pool of this process has: kvcached_SGLang_4711_swa, then ..._swa_2."""
    name = segment_name(pool)
    numbered = (f"{name}_{number}" for number in count(2))
    return next(each for each in chain([name], numbered) if each not in _names)
