# SPDX-License-Identifier: Apache-2.0
"""The figures, for the terminal and for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from paired import Ratio
from results import ratio_document, ratio_table, verdict
from rich.console import Console

from .exactness import Exactness


def show(console: Console, ratios: Sequence[Ratio], exactness: Exactness) -> None:
    """One row per ratio, then what was mapped."""
    console.print(ratio_table(ratios))
    console.print(verdict(ratios))
    console.print(
        f"waved load, {len(exactness.steps)} steps, up to {exactness.peak_bytes:,} bytes mapped: "
        f"{len(exactness.different)} steps with other bytes than expected; "
        f"{exactness.left_bytes:+,} bytes resident at the end, "
        f"{exactness.tolerance_bytes:,} allowed",
        style=None if exactness.kept else "red",
    )


def write(path: Path, ratios: Sequence[Ratio], exactness: Exactness) -> None:
    """Everything, as JSON; times in seconds."""
    document = {
        "kept": exactness.kept and all(ratio.kept for ratio in ratios),
        "ratios": [ratio_document(ratio) for ratio in ratios],
        "waved_load": {
            "steps": len(exactness.steps),
            "peak_mapped_bytes": exactness.peak_bytes,
            "different": [asdict(step) for step in exactness.different],
            "left_bytes": exactness.left_bytes,
            "tolerance_bytes": exactness.tolerance_bytes,
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
