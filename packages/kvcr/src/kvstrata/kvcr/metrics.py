# SPDX-License-Identifier: Apache-2.0
"""What the backend counts, for SGLang's own ``/metrics``.

SGLang gathers the metrics of all its processes by the multiprocess mode of prometheus_client. So it
is enough to make metrics in this process, and they may be made only after SGLang's start.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from .config import BACKEND_NAME

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

Source = Literal["local", "peer"]
"""Whose DRAM a page was restored from."""

MissReason = Literal["absent", "unreachable", "failed", "stopped", "error"]
"""Why a page could not be had: nobody is known to hold it; its source cannot be asked now; its
transfer failed or was given up; KVCR does not run; the backend met an exception."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Recorder(Protocol):
    """Takes note of what one rank did; cheap, never raises, may be called by any thread.

    Pools are named as SGLang names them. ``seconds`` is the wall time of the whole call that the
    pages were part of.
    """

    def backed_up(self, pool: str, *, pages: int, page_bytes: int, seconds: float) -> None:
        """Pages of one call that are held in DRAM now."""

    def restored(
        self, pool: str, source: Source, *, pages: int, page_bytes: int, seconds: float
    ) -> None:
        """Host pages of one call that were filled from one source."""

    def missed(self, reason: MissReason, *, pages: int) -> None:
        """Pages that were asked for and could not be had."""

    def discarded(self, *, pages: int) -> None:
        """Pages that were restored in full after SGLang had stopped waiting for them."""

    def occupancy(self, pool: str, *, used_bytes: int, total_bytes: int) -> None:
        """How much of the DRAM tier holds pages."""

    def peers(self, count_by_state: Mapping[str, int]) -> None:
        """How many peers there are in each state of the circuit breaker."""


class NullRecorder:
    """A recorder for servers without metrics."""

    def backed_up(self, pool: str, *, pages: int, page_bytes: int, seconds: float) -> None: ...

    def restored(
        self, pool: str, source: Source, *, pages: int, page_bytes: int, seconds: float
    ) -> None: ...

    def missed(self, reason: MissReason, *, pages: int) -> None: ...

    def discarded(self, *, pages: int) -> None: ...

    def occupancy(self, pool: str, *, used_bytes: int, total_bytes: int) -> None: ...

    def peers(self, count_by_state: Mapping[str, int]) -> None: ...


@dataclass(frozen=True)
class _Families:
    """The metrics of this process."""

    backup_pages: "Counter"
    backup_bytes: "Counter"
    backup_seconds: "Histogram"
    restore_pages: "Counter"
    restore_bytes: "Counter"
    restore_seconds: "Histogram"
    missed_pages: "Counter"
    discarded_pages: "Counter"
    dram_used_bytes: "Gauge"
    dram_total_bytes: "Gauge"
    peers: "Gauge"


@functools.cache
def _families(label_names: tuple[str, ...]) -> _Families:
    """Cached, because a name can be registered once only and a backend may be attached again."""
    from prometheus_client import Counter, Gauge, Histogram

    def counter(name: str, documentation: str, *own: str) -> Counter:
        return Counter(name, documentation, (*label_names, *own))

    def gauge(name: str, documentation: str, *own: str) -> Gauge:
        labels = (*label_names, *own)
        return Gauge(name, documentation, labels, multiprocess_mode="mostrecent")

    def histogram(name: str, documentation: str, *own: str) -> Histogram:
        return Histogram(name, documentation, (*label_names, *own), buckets=_SECONDS)

    return _Families(
        counter("kvcr_backup_pages_total", "Host pages that are held in DRAM since.", "pool"),
        counter("kvcr_backup_bytes_total", "Bytes of the pages backed up.", "pool"),
        histogram("kvcr_backup_seconds", "Duration of the backend's backup calls.", "pool"),
        counter("kvcr_restore_pages_total", "Host pages filled, by source.", "pool", "source"),
        counter("kvcr_restore_bytes_total", "Bytes of the pages restored.", "pool", "source"),
        histogram(
            "kvcr_restore_seconds", "Duration of calls that restored pages.", "pool", "source"
        ),
        counter("kvcr_missed_pages_total", "Pages that could not be had, by reason.", "reason"),
        counter("kvcr_discarded_pages_total", "Pages restored after SGLang stopped waiting."),
        gauge("kvcr_dram_used_bytes", "DRAM that holds pages.", "pool"),
        gauge("kvcr_dram_total_bytes", "DRAM given to KVCR.", "pool"),
        gauge("kvcr_peers", "Known peers by state of their circuit breaker.", "state"),
    )


class PrometheusRecorder:
    """Counts in metrics named ``kvcr_...``, under the labels that it is given."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = dict(labels)
        self._metrics = _families(tuple(self._labels))
        # What can be counted shows as 0 from the start, so that a rate over its first event holds.
        for reason in get_args(MissReason):
            self._metrics.missed_pages.labels(**self._labels, reason=reason)
        self._metrics.discarded_pages.labels(**self._labels)

    def backed_up(self, pool: str, *, pages: int, page_bytes: int, seconds: float) -> None:
        labels, metrics = {**self._labels, "pool": pool}, self._metrics
        metrics.backup_pages.labels(**labels).inc(pages)
        metrics.backup_bytes.labels(**labels).inc(pages * page_bytes)
        metrics.backup_seconds.labels(**labels).observe(seconds)

    def restored(
        self, pool: str, source: Source, *, pages: int, page_bytes: int, seconds: float
    ) -> None:
        labels, metrics = {**self._labels, "pool": pool, "source": source}, self._metrics
        metrics.restore_pages.labels(**labels).inc(pages)
        metrics.restore_bytes.labels(**labels).inc(pages * page_bytes)
        metrics.restore_seconds.labels(**labels).observe(seconds)

    def missed(self, reason: MissReason, *, pages: int) -> None:
        self._metrics.missed_pages.labels(**self._labels, reason=reason).inc(pages)

    def discarded(self, *, pages: int) -> None:
        self._metrics.discarded_pages.labels(**self._labels).inc(pages)

    def occupancy(self, pool: str, *, used_bytes: int, total_bytes: int) -> None:
        labels = {**self._labels, "pool": pool}
        self._metrics.dram_used_bytes.labels(**labels).set(used_bytes)
        self._metrics.dram_total_bytes.labels(**labels).set(total_bytes)

    def peers(self, count_by_state: Mapping[str, int]) -> None:
        for state, count in count_by_state.items():
            self._metrics.peers.labels(**self._labels, state=state).set(count)


def labels_for(config: "HiCacheStorageConfig") -> dict[str, str] | None:
    """The labels of a rank's metrics, the same as SGLang's; None while SGLang's metrics are off."""
    if not config.enable_storage_metrics:
        return None
    from sglang.srt.runtime_context import get_observability

    labels = {
        "storage_backend": BACKEND_NAME,
        "tp_rank": config.tp_rank,
        # Part of the configuration from SGLang 0.5.21 on.
        "dp_rank": getattr(config, "dp_rank", 0),
        "pp_rank": config.pp_rank,
        "pp_size": config.pp_size,
        "attn_cp_rank": config.attn_cp_rank,
        "attn_cp_size": config.attn_cp_size,
        **(get_observability().extra_metric_labels or {}),
    }
    return {name: str(value) for name, value in labels.items()}


def recorder_for(config: "HiCacheStorageConfig") -> Recorder:
    """The recorder of a rank: counts if SGLang's metrics are on, under the same labels as SGLang.

    With metrics off, prometheus_client is not even imported.
    """
    labels = labels_for(config)
    return NullRecorder() if labels is None else PrometheusRecorder(labels)
