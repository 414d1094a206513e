# SPDX-License-Identifier: Apache-2.0
"""What the options make of the backend's own ways, the innermost first."""

from collections.abc import Mapping

from kvstrata.kvcr.extension import Extension, Surroundings

from .batching import ReadBatches
from .checksums import CheckedBytes
from .combined import CombinedIO
from .config import TuningConfig
from .copying import CopiedRestores
from .huge_pages import HugePages
from .recency import AlignedRecency
from .sharing import SharedPages, check_replicated
from .stages import StageMetrics, histogram_for


def tuned(options: Mapping[str, object], surroundings: Surroundings, inner: Extension) -> Extension:
    """The ways of `inner` with all options that are on; `inner` itself if none is.

    Raises ConfigError for an option that is wrong, or that the server's topology does not allow.
    """
    config = TuningConfig.parse(options)
    ways = inner
    if config.stage_metrics:
        ways = StageMetrics(ways, histogram_for(surroundings.topology))
    if config.huge_pages:
        ways = HugePages(ways)
    # Innermost of what restores: the others are told of every page, wherever it comes from.
    if config.copy_restores:
        ways = CopiedRestores(ways, config.copy_threads)
    if config.shared_mla:
        check_replicated(surroundings.topology)
        if surroundings.topology.tp_size > 1:
            ways = SharedPages(ways, surroundings)
    # Outside of whatever fills pages, and within what has to know which are not whole.
    if config.verify_bytes:
        ways = CheckedBytes(ways)
    if config.align_recency:
        ways = AlignedRecency(ways, surroundings.config)
    if config.combined_io:
        ways = CombinedIO(ways)
    if config.read_batch_pages != ways.read_batch_pages:
        ways = ReadBatches(ways, config.read_batch_pages)
    return ways
