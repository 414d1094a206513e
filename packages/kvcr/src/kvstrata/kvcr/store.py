# SPDX-License-Identifier: Apache-2.0
"""The HiCache storage backend: SGLang's contract on one side, KVCR on the other.

SGLang's storage threads die on an exception and leave the other ranks waiting. So whatever fails
in a call is a miss for every page of that call, logged once, and never an exception.
"""

import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import torch
from kvcr.types import BlockKey, CacheTier, MemoryRef
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
)

from . import nixl_thread
from .activation import activate
from .config import KvcrConfig
from .endpoints import Endpoint, EndpointPolicy
from .errors import ConfigError
from .hints import Hint, HintPolicy, carried
from .identity import model_identity
from .keys import Namespace, page_key
from .layout import HostPages, HostPool
from .losses import Discards
from .metrics import Source, recorder_for
from .peers import PeerProbe
from .preflight import check_port_free
from .runner import Blocks, Deadlines, Runner, RunnerAddress
from .worker import end_worker

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")
_KV = "kv"


def _contained(
    miss: Callable[_P, _R],
) -> Callable[
    [Callable[Concatenate["KvcrStore", _P], _R]], Callable[Concatenate["KvcrStore", _P], _R]
]:
    """Make a method return what `miss` returns for the same arguments instead of raising."""

    def decorate(
        method: Callable[Concatenate["KvcrStore", _P], _R],
    ) -> Callable[Concatenate["KvcrStore", _P], _R]:
        @functools.wraps(method)
        def wrapper(self: "KvcrStore", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return method(self, *args, **kwargs)
            except Exception:  # SGLang's storage threads do not survive any exception
                logger.exception("kvcr %s failed, taken for a miss", method.__name__)
                return miss(*args, **kwargs)

        return wrapper

    return decorate


def _no_hint(raw: object) -> Hint | None:
    return None


def _no_prefix(keys: Sequence[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
    return 0


def _no_pages(
    keys: Sequence[str],
    host_indices: torch.Tensor,
    extra_info: HiCacheStorageExtraInfo | None = None,
) -> list[bool]:
    return [False] * len(keys)


class KvcrStore(HiCacheStorage):  # type: ignore[misc]  # SGLang ships no types
    """KVCR as storage of one rank's KV pages.

    Args:
        storage_config: SGLang's description of this rank; its ``extra_config`` holds the
            settings of `KvcrConfig`.
        model_path: folder of the model; gives its identity unless ``model_id`` is set.

    Raises ConfigError for a topology or a setting that is not supported.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, model_path: str) -> None:
        self._config = KvcrConfig.parse(storage_config.extra_config or {})
        self._topology = storage_config
        _check_topology(storage_config)
        if not self._config.nixl_progress_thread:
            activate(nixl_thread.SEAMS)
        self._model = self._config.model_id or model_identity(model_path)
        self._rank = _rank_of(storage_config)
        advertised = self._config.advertise_host or self._config.bind_host
        self._own = Endpoint(advertised, self._config.control_port)
        self._hints = HintPolicy(
            self._config.trust_request_hints,
            EndpointPolicy(self._config.allowed_peers, advertised),
        )
        self._recorder = recorder_for(storage_config)
        self._probe = PeerProbe(self._config.peer_probe_timeout_seconds, self._recorder)
        self.discards = Discards(self._recorder)
        self._runner: Runner | None = None
        self._namespace = b""
        self.operation_timeout_seconds = self._config.operation_timeout_seconds

    # Lifetime

    def register_mem_pool_host(self, mem_pool_host: HostPool) -> None:
        """Register the KV host pool and start KVCR on it."""
        super().register_mem_pool_host(mem_pool_host)
        pages = HostPages.of(_KV, mem_pool_host)
        topology = self._topology
        self._namespace = Namespace(
            model=self._model,
            dtype=str(mem_pool_host.dtype),
            layout=mem_pool_host.layout,
            page_size_tokens=pages.page_size_tokens,
            page_bytes=pages.page_bytes,
            tp_rank=topology.tp_rank,
            tp_size=topology.tp_size,
            cp_rank=topology.attn_cp_rank,
            cp_size=topology.attn_cp_size,
            pool=_KV,
        ).digest()
        self._runner = self._start_runner(pages)

    def register_mem_host_pool_v2(self, host_pool: HostPool, host_pool_name: str) -> None:
        """Accept the KV pool, which is registered already; raises ConfigError for any other."""
        if host_pool is not self.mem_pool_host:
            raise ConfigError(
                "--hicache-storage-backend",
                "kvcr",
                "models whose only host pool is kv",
                f"This model also has the pool {str(host_pool_name)!r}: choose another backend.",
            )
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def close(self) -> None:
        """Stop KVCR; SGLang calls this when the backend is detached."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def clear(self) -> None:
        """Forget every page. KVCR has no such call, so it is started anew on the same memory."""
        runner = self._runner
        if runner is None:
            return
        self.close()
        self._runner = self._start_runner(runner.pages)

    def _start_runner(self, pages: HostPages) -> Runner:
        config, rank = self._config, self._rank
        control_port, nixl_port = config.control_port + rank, config.nixl_port + rank
        check_port_free("control_port", config.bind_host, control_port)
        check_port_free("nixl_port", "", nixl_port)
        if pages.page_bytes > config.dram_bytes:
            raise ConfigError(
                "dram_bytes",
                config.dram_bytes,
                f"at least one page of {pages.page_bytes} bytes",
                "Raise dram_bytes; a useful tier holds many thousand pages.",
            )
        started = time.monotonic()
        runner = Runner(
            RunnerAddress(
                agent=f"kvstrata-{socket.gethostname()}-{os.getpid()}-{control_port}",
                bind_host=config.bind_host,
                advertise_host=self._own.host,
                control_port=control_port,
                nixl_port=nixl_port,
            ),
            pages,
            config.dram_bytes,
            Deadlines(
                config.operation_timeout_seconds,
                config.abandon_timeout_seconds,
                config.startup_timeout_seconds,
            ),
            self._probe.is_gone,
            end_worker,
        )
        logger.info(
            "kvcr ready endpoint=%s pages=%d page_bytes=%d dram_bytes=%d seconds=%.2f",
            self._own.of_rank(rank),
            pages.page_count,
            pages.page_bytes,
            config.dram_bytes,
            time.monotonic() - started,
        )
        return runner

    # Hints

    @_contained(_no_hint)
    def accept_hint(self, raw: object) -> Hint | None:
        """The hint that came with a request, if this server follows it; never raises."""
        return self._hints.accept(raw)

    def _peer_hint(self, hint: object) -> Hint | None:
        """A hint aimed at this rank's counterpart on its source, if that can be asked now."""
        if not isinstance(hint, Hint) or hint.source == self._own:
            return None
        source = hint.source.of_rank(self._rank)
        if not self._probe.reachable(source):
            logger.warning("kvcr peer unreachable endpoint=%s, restoring locally", source)
            return None
        return Hint(source, hint.hashes)

    # Pages

    @_contained(_no_prefix)
    def batch_exists(
        self, keys: Sequence[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        """How many leading pages can be had from own DRAM or the current hint's source."""
        runner = self._runner
        if runner is None:
            return 0
        hint = self._peer_hint(carried())
        tiers = runner.query([page_key(key, self._namespace) for key in keys], hint)
        found = next((i for i, tier in enumerate(tiers) if tier is None), len(tiers))
        if found < len(keys):
            self._recorder.missed("absent", pages=len(keys) - found)
        return found

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    @_contained(_no_pages)
    def batch_get_v1(
        self,
        keys: Sequence[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Fill host pages; whether each page was filled. A page that was not holds no data."""
        runner = self._runner
        if runner is None:
            return [False] * len(keys)
        started = time.monotonic()
        blocks = self._blocks(runner, keys, host_indices)
        hint = self._peer_hint(carried())
        tiers = runner.query(list(blocks), hint)
        # Beside a page that nobody has, KVCR would fail the pages that somebody has.
        found = {
            key: references
            for (key, references), tier in zip(blocks.items(), tiers, strict=True)
            if tier is not None
        }
        filled = dict(zip(found, runner.deliver(found, hint), strict=True)) if found else {}
        results = [filled.get(key, False) for key in blocks]
        sources = [tier for tier, restored in zip(tiers, results, strict=True) if restored]
        self._record_restored(runner, sources, time.monotonic() - started)
        logger.info(
            "kvcr restore pages=%d restored=%d from_dram=%d from_peer=%d peer=%s bytes=%d ms=%.1f",
            len(keys),
            sum(results),
            sources.count(CacheTier.LOCAL_G2),
            sources.count(CacheTier.REMOTE_G2),
            hint.source if hint else None,
            sum(results) * runner.pages.page_bytes,
            (time.monotonic() - started) * 1000,
        )
        return results

    @_contained(_no_pages)
    def batch_set_v1(
        self,
        keys: Sequence[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Copy host pages into KVCR's DRAM; whether each page is held there."""
        runner = self._runner
        if runner is None:
            return [False] * len(keys)
        started = time.monotonic()
        results = runner.deposit(self._blocks(runner, keys, host_indices))
        self._recorder.backed_up(
            _KV,
            pages=sum(results),
            page_bytes=runner.pages.page_bytes,
            seconds=time.monotonic() - started,
        )
        logger.info(
            "kvcr backup pages=%d held=%d bytes=%d ms=%.1f",
            len(keys),
            sum(results),
            sum(results) * runner.pages.page_bytes,
            (time.monotonic() - started) * 1000,
        )
        return results

    def _record_restored(
        self, runner: Runner, tiers: Sequence[CacheTier | None], seconds: float
    ) -> None:
        sources: tuple[tuple[CacheTier, Source], ...] = (
            (CacheTier.LOCAL_G2, "local"),
            (CacheTier.REMOTE_G2, "peer"),
        )
        for tier, source in sources:
            if pages := tiers.count(tier):
                self._recorder.restored(
                    _KV,
                    source,
                    pages=pages,
                    page_bytes=runner.pages.page_bytes,
                    seconds=seconds,
                )

    def _blocks(self, runner: Runner, keys: Sequence[str], host_indices: torch.Tensor) -> Blocks:
        page_indices = runner.pages.page_indices(host_indices)
        if len(page_indices) != len(keys):
            raise ValueError(f"{len(keys)} keys for {len(page_indices)} host pages")
        blocks: dict[BlockKey, list[MemoryRef]] = {
            page_key(key, self._namespace): runner.pages.references(runner.address.agent, page)
            for key, page in zip(keys, page_indices, strict=True)
        }
        if len(blocks) != len(keys):
            raise ValueError(f"{len(keys) - len(blocks)} pages are named twice")
        return blocks

    # The one-page calls of the contract, which the zero-copy path never makes.

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


def _check_topology(config: HiCacheStorageConfig) -> None:
    if config.pp_size > 1:
        raise ConfigError(
            "--pp-size", config.pp_size, "1", "Pipeline parallelism is not supported by kvcr."
        )
    if config.should_split_heads:
        raise ConfigError(
            "tp_lcm_size",
            config.tp_lcm_size,
            "unset, with equal TP on all replicas",
            "Heads split over different TP sizes are not supported by kvcr.",
        )


def _rank_of(config: HiCacheStorageConfig) -> int:
    """Offset of a rank's ports; every producer of hints names rank 0 alone."""
    outer = config.attn_cp_rank + config.attn_cp_size * config.pp_rank
    rank: int = config.tp_rank + config.tp_size * outer
    return rank
