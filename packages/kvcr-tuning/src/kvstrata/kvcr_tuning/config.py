# SPDX-License-Identifier: Apache-2.0
"""The options, as written under ``tuning`` in the extra config of the backend."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from kvstrata.kvcr.config import read

SGLANG_BATCH_PAGES = 128
"""Pages of one read as SGLang cuts them."""


class TuningConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one server; with the defaults, nothing is changed."""

    combined_io: Annotated[
        bool,
        Meta(
            description="Read and back up KV and the pools that have KV's indices, such as an "
            "indexer, in one operation."
        ),
    ] = False
    read_batch_pages: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 16,
            description="Pages of one read, after each of which the ranks agree; equal on all "
            "ranks of a server.",
        ),
    ] = SGLANG_BATCH_PAGES
    shared_mla: Annotated[
        bool,
        Meta(
            description="With replicated KV (MLA), back up on rank 0 alone; the other ranks "
            "restore from there and keep no copy."
        ),
    ] = False
    align_recency: Annotated[
        bool,
        Meta(
            description="Let a prefix age as one, so that its last pages are dropped from the DRAM "
            "tier before its first ones."
        ),
    ] = False
    copy_restores: Annotated[
        bool,
        Meta(
            description="Restore from own DRAM by copying claimed pages, instead of a transfer of "
            "NIXL from the process to itself."
        ),
    ] = False
    copy_threads: Annotated[
        int,
        Meta(ge=1, le=64, description="Threads that copy for copy_restores, in each rank."),
    ] = 2
    huge_pages: Annotated[
        bool,
        Meta(description="Ask the kernel for transparent huge pages in the DRAM tier."),
    ] = False
    stage_metrics: Annotated[
        bool,
        Meta(description="Measure the stages of each call, as kvcr_stage_seconds in /metrics."),
    ] = False
    verify_bytes: Annotated[
        bool,
        Meta(
            description="Compare each restored page with a checksum from its backup, and take a "
            "damaged one for a miss; equal on all servers that share pages."
        ),
    ] = False

    @classmethod
    def parse(cls, options: Mapping[str, object]) -> "TuningConfig":
        """Validate options; raises ConfigError naming the first wrong one."""
        return read(cls, options, "tuning.")
