# SPDX-License-Identifier: Apache-2.0
"""The figures, for the terminal and for programs."""

import json
from collections.abc import Sequence
from pathlib import Path

from paired import Ratio
from results import ratio_document, ratio_table, verdict
from rich.console import Console

from .growth import Growth


def show(console: Console, ratios: Sequence[Ratio], growth: Growth) -> None:
    """One row per ratio, then the growth."""
    console.print(ratio_table(ratios))
    console.print(verdict(ratios))
    console.print(
        f"after {growth.operations:,} more operations: {growth.resident_bytes:+,} bytes resident, "
        f"{growth.objects:+,} Python objects",
        style=None if growth.kept else "red",
    )


def write(path: Path, ratios: Sequence[Ratio], growth: Growth) -> None:
    """Everything, as JSON; times in seconds."""
    document = {
        "kept": growth.kept and all(ratio.kept for ratio in ratios),
        "ratios": [ratio_document(ratio) for ratio in ratios],
        "growth": {
            "operations": growth.operations,
            "resident_bytes": growth.resident_bytes,
            "objects": growth.objects,
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
