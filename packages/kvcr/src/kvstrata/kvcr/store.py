# SPDX-License-Identifier: Apache-2.0
"""The HiCache storage backend: SGLang's contract on one side, KVCR on the other.

SGLang's storage threads die on an exception and leave the other ranks waiting. So whatever fails
in a call is a miss for every page of that call, logged once, and never an exception.
"""

import logging
import os
import socket
import time
from collections.abc import Sequence

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.runtime_context import get_spec

from . import nixl_thread
from .activation import activate
from .batch import PoolPages
from .boundaries import PoolPresence, legal_boundaries
from .config import KvcrConfig
from .contract import Contained, ZeroCopyStorage
from .endpoints import Endpoint, EndpointPolicy
from .errors import ConfigError
from .extension import ENABLEMENT, Surroundings, extended
from .hints import Hint, HintPolicy, carried
from .identity import Weights, value_types
from .instance import Deadlines, RunnerAddress
from .keys import Namespace
from .layout import HostPages, HostPool
from .losses import Discards
from .metrics import recorder_for
from .peers import PeerProbe
from .pools import HostPools
from .preflight import check_port_free
from .runner import Runner
from .session import Peer, Session
from .staging import STAGED
from .topology import check_topology, rank_of
from .worker import end_worker

logger = logging.getLogger(__name__)

_KV = "kv"
"""SGLang's name of the pool that the calls of the first version mean."""


class KvcrStore(ZeroCopyStorage):
    """KVCR as storage of one rank's pages, in all of its host pools.

    Register the pools, then `start`. From then on nothing raises, except that a pool which is
    registered too late is refused.

    Args:
        storage_config: SGLang's description of this rank; its ``extra_config`` holds the
            settings of `KvcrConfig`.
        model_path: folder of the model; gives its identity unless ``model_id`` is set.

    Raises ConfigError for a topology or a setting that is not supported.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, model_path: str) -> None:
        self._config = KvcrConfig.parse(storage_config.extra_config or {})
        self._topology = storage_config
        check_topology(storage_config)
        if not self._config.nixl_progress_thread:
            activate(nixl_thread.SEAMS)
        draft_path = get_spec().speculative_draft_model_path
        self._weights = Weights.of(model_path, draft_path, self._config.model_id)
        self._rank = rank_of(storage_config)
        advertised = self._config.advertise_host or self._config.bind_host
        self._own = Endpoint(advertised, self._config.control_port)
        self.ways = extended(
            STAGED if self._config.peer_restore_mode == "staged" else ENABLEMENT,
            Surroundings(self._config, storage_config, self._rank, self._own),
        )
        self._hints = HintPolicy(
            self._config.trust_request_hints,
            EndpointPolicy(self._config.allowed_peers, advertised),
        )
        self._recorder = recorder_for(storage_config)
        self._probe = PeerProbe(self._config.peer_probe_timeout_seconds, self._recorder)
        self.discards = Discards(self._recorder)
        self.operation_timeout_seconds = self._config.operation_timeout_seconds
        self._host_pools: dict[str, HostPool] = {}
        self._session: Session | None = None
        self._has_stored = False

    # Lifetime

    def register_mem_pool_host(self, mem_pool_host: HostPool) -> None:
        """Register the KV host pool, or the logical anchor in its place."""
        super().register_mem_pool_host(mem_pool_host)
        self._register(_KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: HostPool, host_pool_name: str) -> None:
        """Register a host pool by SGLang's name.

        A pool that comes after `start` makes KVCR start anew with it; raises ConfigError if pages
        have been stored by then, and whatever `start` raises.
        """
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(str(host_pool_name), host_pool)

    def _register(self, name: str, pool: HostPool) -> None:
        if self._host_pools.get(name) is pool:
            return
        if name in self._host_pools:
            raise ConfigError(
                "--hicache-storage-backend",
                "kvcr",
                "one host pool of each name",
                f"Another {name} pool is registered: choose another backend.",
            )
        if self._has_stored:
            raise ConfigError(
                "--hicache-storage-backend",
                "kvcr",
                "host pools that are registered before the first page is stored",
                f"The {name} pool came later: attach the backend after it exists.",
            )
        self._host_pools[name] = pool
        if self._session is not None:
            self.close()
            self.start()

    def start(self) -> None:
        """Start KVCR on all pools registered so far; does nothing if it runs.

        Raises ConfigError for pools, sizes or ports that cannot be used, and StartupError if KVCR
        does not come up.
        """
        if self._session is not None:
            return
        pools = self.ways.prepare(
            HostPools.of(HostPages.of(name, pool) for name, pool in self._host_pools.items())
        )
        runner = self._start_runner(pools)
        namespaces = {pages.name: self._namespace(pages) for pages in pools.physical}
        self._session = Session(runner, namespaces, self.ways, self._probe, self._recorder)
        self._has_stored = False

    def close(self) -> None:
        """Stop KVCR; SGLang calls this when the backend is detached."""
        session, self._session = self._session, None
        if session is not None:
            session.runner.close()

    def clear(self) -> None:
        """Forget every page. KVCR has no such call, so it is started anew on the same memory."""
        if self._session is not None:
            with self._contained("clear"):
                self.close()
                self.start()

    def _namespace(self, pages: HostPages) -> bytes:
        pool, topology = self._host_pools[pages.name], self._topology
        return Namespace(
            model=self._weights.behind(pages.name, pool),
            dtypes=value_types(pool),
            layout=pool.layout,
            page_slots=pages.page_slots,
            component_bytes=tuple(component.size_bytes for component in pages.components),
            tp_rank=self.ways.counterpart(topology.tp_rank),
            tp_size=topology.tp_size,
            cp_rank=topology.attn_cp_rank,
            cp_size=topology.attn_cp_size,
            pool=pages.name,
        ).digest()

    def _start_runner(self, pools: HostPools) -> Runner:
        config, rank = self._config, self._rank
        dram_bytes = self.ways.dram_bytes(config, pools)
        control_port, nixl_port = config.control_port + rank, config.nixl_port + rank
        check_port_free("control_port", config.bind_host, control_port)
        check_port_free("nixl_port", "", nixl_port)
        started = time.monotonic()
        runner = Runner(
            RunnerAddress(
                agent=f"kvstrata-{socket.gethostname()}-{os.getpid()}-{control_port}",
                bind_host=config.bind_host,
                advertise_host=self._own.host,
                control_port=control_port,
                nixl_port=nixl_port,
            ),
            pools,
            dram_bytes,
            Deadlines(
                config.operation_timeout_seconds,
                config.abandon_timeout_seconds,
                config.startup_timeout_seconds,
            ),
            self._probe.is_gone,
            end_worker,
            self.ways.allocate,
        )
        logger.info(
            "kvcr ready endpoint=%s pages=%d page_bytes=%d dram_bytes=%d seconds=%.2f pools=%s",
            self._own.of_rank(rank),
            max(pages.page_count for pages in pools.physical),
            sum(pages.page_bytes for pages in pools.physical),
            dram_bytes,
            time.monotonic() - started,
            ",".join(f"{name}:{pages}" for name, pages in runner.tier_pages.items()),
        )
        return runner

    # Hints

    def accept_hint(self, raw: object) -> Hint | None:
        """The hint that came with a request, if this server follows it; never raises."""
        with self._contained("reading a hint"):
            return self._hints.accept(raw)
        return None

    def _peer(self) -> Peer:
        """The current hint, aimed at this rank's counterpart on its source if that is reachable."""
        hint = carried()
        if not isinstance(hint, Hint) or hint.source == self._own:
            return Peer()
        source = hint.source.of_rank(self.ways.counterpart(self._rank))
        if not self._probe.reachable(source):
            logger.warning("kvcr peer unreachable endpoint=%s, restoring locally", source)
            return Peer(absence="unreachable")
        return Peer(Hint(source, hint.hashes))

    # Queries

    def batch_exists(
        self, keys: Sequence[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        """How many leading KV pages can be had; none of a logical anchor, which proves nothing."""
        pages: int = self.batch_exists_v2(keys).kv_hit_pages
        return pages

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists_v2(
        self,
        keys: Sequence[str],
        pool_transfers: Sequence[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Which prefixes of the pages can be had in every pool that needs them.

        ``restorable_prefix_pages`` holds all legal lengths, ``kv_hit_pages`` the longest, and
        ``extra_pool_hit_pages`` the longest that KV and one other pool would allow.
        """
        with self._contained("query", len(keys)):
            if session := self._running(len(keys)):
                return self._query(session, keys, pool_transfers or ())
        return PoolTransferResult(0, {}, [])

    def _query(
        self, session: Session, hashes: Sequence[str], transfers: Sequence[PoolTransfer]
    ) -> PoolTransferResult:
        windows = {_KV: None} | {str(t.name): _window_pages(t) for t in transfers}
        peer = self._peer()
        required = {
            name: PoolPresence(pages, windows[name])
            for name, pages in session.presence(list(windows), hashes, peer).items()
        }
        legal = legal_boundaries(len(hashes), required.values())
        longest = legal[-1] if legal else 0
        if longest < len(hashes):
            self._recorder.missed(peer.absence, pages=len(hashes) - longest)
        kv = {name: presence for name, presence in required.items() if name == _KV}
        extra = {
            name: max(legal_boundaries(len(hashes), (kv | {name: presence}).values()), default=0)
            for name, presence in required.items()
            if name != _KV
        }
        return PoolTransferResult(longest, extra, legal)

    # Pages

    def batch_get_v1(
        self,
        keys: Sequence[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Fill KV host pages; whether each page was filled. A page that was not holds no data."""
        with self._contained("restore", len(keys)):
            if session := self._running(len(keys)):
                pages = PoolPages(_KV, keys, host_indices)
                return session.restore([pages], self._peer(), _prefix(extra_info))[_KV]
        return [False] * len(keys)

    def batch_get_v2(
        self,
        transfers: Sequence[PoolTransfer],
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> dict[str, list[bool]]:
        """Fill host pages of several pools at once; per pool, whether each page was filled."""
        nothing = _no_pages(transfers)
        pages = sum(map(len, nothing.values()))
        with self._contained("restore", pages):
            if session := self._running(pages):
                return session.restore(_pool_pages(transfers), self._peer(), _prefix(extra_info))
        return nothing

    def batch_set_v1(
        self,
        keys: Sequence[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Copy KV host pages into KVCR's DRAM; whether each page is held there."""
        with self._contained("backup"):
            if session := self._running():
                self._has_stored = True
                pages = PoolPages(_KV, keys, host_indices)
                return session.back_up([pages], _prefix(extra_info))[_KV]
        return [False] * len(keys)

    def batch_set_v2(
        self,
        transfers: Sequence[PoolTransfer],
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> dict[str, list[bool]]:
        """Copy host pages of several pools into KVCR's DRAM; per pool, whether each is held."""
        with self._contained("backup"):
            if session := self._running():
                self._has_stored = True
                return session.back_up(_pool_pages(transfers), _prefix(extra_info))
        return _no_pages(transfers)

    def _running(self, asked_pages: int = 0) -> Session | None:
        if self._session is None and asked_pages:
            self._recorder.missed("stopped", pages=asked_pages)
        return self._session

    def _contained(self, call: str, asked_pages: int = 0) -> Contained:
        def count() -> None:
            if asked_pages:
                self._recorder.missed("error", pages=asked_pages)

        return Contained(call, count)


def _window_pages(transfer: PoolTransfer) -> int | None:
    """How many pages before a boundary a pool needs; SGLang sends one key for each of them."""
    if transfer.hit_policy != PoolHitPolicy.TRAILING_PAGES:
        return None
    return max(1, len(transfer.keys or ()))


def _prefix(extra_info: HiCacheStorageExtraInfo | None) -> Sequence[str]:
    return (extra_info and extra_info.prefix_keys) or ()


def _pool_pages(transfers: Sequence[PoolTransfer]) -> list[PoolPages]:
    return [PoolPages(str(t.name), t.keys or (), t.host_indices) for t in transfers]


def _no_pages(transfers: Sequence[PoolTransfer]) -> dict[str, list[bool]]:
    return {str(t.name): [False] * len(t.keys or ()) for t in transfers}
