# SPDX-License-Identifier: Apache-2.0
"""What another package may change in this backend, and the backend's own ways of it.

An extension registers itself in its plugin's ``load()``, under the setting ``tuning``. Without that
setting a store uses `ENABLEMENT`, and whoever calls it meets nothing else.
"""

import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .errors import ConfigError

# A plugin that registers an extension is loaded where nothing of this may be used.
if TYPE_CHECKING:
    from kvcr.types import BlockKey, CacheTier
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolTransfer
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    from .batch import Batch
    from .config import KvcrConfig
    from .endpoints import Endpoint
    from .hints import Hint
    from .pools import HostPools
    from .runner import Runner

PACKAGE = "kvstrata-kvcr-tuning"
"""The distribution that reads the setting ``tuning``."""

PLUGIN = "kvstrata_kvcr_tuning"
"""Its name among SGLang's plugins."""

_UNOBSERVED = nullcontext()


@dataclass(frozen=True)
class Surroundings:
    """What an extension is made for.

    Args:
        topology: SGLang's description of the rank.
        rank: offset of the rank's ports.
        own: where peers reach rank 0 of this server.
    """

    config: "KvcrConfig"
    topology: "HiCacheStorageConfig"
    rank: int
    own: "Endpoint"


class Extension:
    """The backend's own ways; an extension overrides what it does in another way.

    One object serves one store, over every start of its KVCR, and is called by several threads.
    What a method raises is a miss of the call, except where it says ConfigError: that refuses the
    backend.
    """

    read_batch_pages = 128
    """Pages of one read, after each of which the ranks agree; equal on all ranks."""

    shared_pages = False
    """Whether the ranks keep one copy of their pages; equal on all ranks."""

    keeps_pages = True
    """Whether this rank backs up at all."""

    def prepare(self, pools: "HostPools") -> "HostPools":
        """The pools to register; called before each start.

        Raises ConfigError for pools that the extension cannot serve.
        """
        return pools

    def dram_bytes(self, config: "KvcrConfig", pools: "HostPools") -> int:
        """DRAM of this rank's tier."""
        return config.dram_bytes

    def allocate(self, size_bytes: int) -> mmap.mmap:
        """Memory of a DRAM tier; need not be resident."""
        return mmap.mmap(-1, size_bytes)

    def attached(self, cache: "UnifiedRadixCache") -> None:
        """Told of the cache once storage is attached to it."""

    def counterpart(self, rank: int) -> int:
        """The rank whose pages this rank's are, in names and at a peer."""
        return rank

    def joins_kv(self, transfer: "PoolTransfer") -> bool:
        """Whether a pool with KV's indices is read and backed up in one operation with KV."""
        return False

    def locate(
        self, runner: "Runner", keys: Sequence["BlockKey"], hint: "Hint | None"
    ) -> "list[CacheTier | None]":
        """Where each page can be had from, like `Runner.query`."""
        return runner.query(keys, hint)

    def restore(
        self,
        runner: "Runner",
        batch: "Batch",
        found: "Mapping[BlockKey, CacheTier]",
        hint: "Hint | None",
    ) -> list[bool]:
        """Fill the host pages of the keys that were found; whether each was filled.

        Returns once nothing touches the pages any more.
        """
        return runner.deliver(batch.only(found), hint)

    def deposit(self, runner: "Runner", batch: "Batch") -> list[bool]:
        """Copy the host pages of a batch into the DRAM tier; whether each block is held there."""
        return runner.deposit(batch.blocks)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Entered around a stage of a call: ``plan``, ``locate``, ``restore`` or ``deposit``."""
        return _UNOBSERVED


ENABLEMENT = Extension()


class Make(Protocol):
    """How an extension is made from the setting ``tuning``."""

    def __call__(
        self, options: Mapping[str, object], surroundings: Surroundings, inner: Extension
    ) -> Extension:
        """An extension that does in the ways of `inner` whatever no option changes.

        Returns `inner` itself if none does. Raises ConfigError for options that are wrong or do not
        fit the surroundings.
        """


_registered: list[Make] = []


def register(make: Make) -> None:
    """Offer what reads the setting ``tuning``; a later offer replaces an earlier one."""
    _registered[:] = [make]


def extended(inner: Extension, surroundings: Surroundings) -> Extension:
    """What a store with a way of its own uses; raises ConfigError for options that nobody reads."""
    options = surroundings.config.tuning
    if not options:
        return inner
    if not _registered:
        fix = f"Run: pip install {PACKAGE}"
        if allowed := os.environ.get("SGLANG_PLUGINS"):
            fix += f", and add {PLUGIN} to SGLANG_PLUGINS, which is {allowed!r}"
        raise ConfigError("tuning", options, f"nothing, unless {PACKAGE} is installed", f"{fix}.")
    return _registered[0](options, surroundings, inner)
