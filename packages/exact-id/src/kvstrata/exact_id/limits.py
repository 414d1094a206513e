# SPDX-License-Identifier: Apache-2.0
"""How much memory a pool may map, as operators set it with kvcached's tools."""

import atexit
import mmap
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np

from .geometry import PoolGeometry


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
        self._geometry = geometry
        self._limit_bytes = geometry.virtual_bytes
        self._revision = 0

    @property
    def page_count(self) -> int:
        """How many VMM pages may be mapped."""
        return self.effective_bytes // self._geometry.bundle_bytes

    @property
    def effective_bytes(self) -> int:
        bundle = self._geometry.bundle_bytes
        allowed = min(self._limit_bytes, self._geometry.virtual_bytes) // bundle * bundle
        return max(allowed, self._geometry.floor_bytes)

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
        init_kv_cache_limit(name, limit_bytes)
        path = Path(get_ipc_path(name))
        self._cleanup = IPCSegmentCleanup(str(path))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), MemInfoStruct.SHM_SIZE)
        # The limit is read on every allocation: one aligned word, without kvcached's file lock.
        self._words = np.frombuffer(self._memory, dtype=np.int64)
        self._published = 0
        atexit.register(self.close)

    @property
    def limit_bytes(self) -> int:
        return int(self._words[0])

    def publish(self, used_bytes: int) -> None:
        """Show `used_bytes` as the memory in use."""
        if used_bytes == self._published:
            return
        from kvcached.cli.utils import MemInfoStruct, RwLockedShm

        with RwLockedShm(self.name, MemInfoStruct.SHM_SIZE, RwLockedShm.WLOCK) as memory:
            info = MemInfoStruct.from_buffer(memory)
            info.used_size = used_bytes
            info.write_to_buffer(memory)
        self._published = used_bytes

    def close(self) -> None:
        atexit.unregister(self.close)
        self._cleanup.unlink()


def segment_name(pool: str) -> str:
    """The name of a pool's segment, such as kvcached_SGLang_4711_swa."""
    from kvcached.utils import DEFAULT_IPC_NAME

    return f"{DEFAULT_IPC_NAME}_{pool}"
