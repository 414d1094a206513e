# SPDX-License-Identifier: Apache-2.0
"""How long each stage of a call takes, in SGLang's own ``/metrics``."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvstrata.kvcr.errors import ConfigError
from kvstrata.kvcr.extension import Extension
from kvstrata.kvcr.metrics import labels_for

from .around import Around

if TYPE_CHECKING:
    from prometheus_client import Histogram
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

_SECONDS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)


class StageMetrics(Around):
    """Tells `observe` the name of each stage and the seconds that it took."""

    def __init__(self, inner: Extension, observe: Callable[[str, float], None]) -> None:
        super().__init__(inner)
        self._observe = observe

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            with self.inner.stage(name):
                yield
        finally:
            self._observe(name, time.perf_counter() - started)


@functools.cache
def _family(label_names: tuple[str, ...]) -> "Histogram":
    """Cached, because a name can be registered once only and a backend may be attached again."""
    from prometheus_client import Histogram

    return Histogram(
        "kvcr_stage_seconds",
        "Duration of the stages of the backend's calls.",
        (*label_names, "stage"),
        buckets=_SECONDS,
    )


def histogram(labels: Mapping[str, str]) -> Callable[[str, float], None]:
    """What observes stages in ``kvcr_stage_seconds``, under these labels."""
    family = _family(tuple(labels))
    of_stage = functools.cache(lambda stage: family.labels(**labels, stage=stage))

    def observe(stage: str, seconds: float) -> None:
        of_stage(stage).observe(seconds)

    return observe


def histogram_for(topology: "HiCacheStorageConfig") -> Callable[[str, float], None]:
    """`histogram` of one rank; raises ConfigError while SGLang's metrics are off."""
    labels = labels_for(topology)
    if labels is None:
        raise ConfigError(
            setting="tuning.stage_metrics",
            value=True,
            allowed="false, while SGLang's metrics are off",
            fix="Start the server with --enable-metrics, or unset tuning.stage_metrics.",
        )
    return histogram(labels)
