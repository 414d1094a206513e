# SPDX-License-Identifier: Apache-2.0
"""The figures, for the terminal and for programs."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .growth import Growth
from .paired import Ratio


def show(console: Console, ratios: Sequence[Ratio], growth: Growth) -> None:
    """One row per ratio, then the growth."""
    table = Table()
    for heading in ("what", "takes", "compared with", "which takes", "ratio", "half of the rounds"):
        table.add_column(heading)
    table.add_column("at most")
    for ratio in ratios:
        low, high = ratio.spread
        table.add_row(
            ratio.name,
            f"{ratio.product_median_seconds * 1000:.3g} ms",
            ratio.peer,
            f"{ratio.peer_median_seconds * 1000:.3g} ms",
            f"{ratio.value:.3g}",
            f"{low:.3g} to {high:.3g}",
            f"{ratio.limit:g}",
            style=None if ratio.kept else "red",
        )
    console.print(table)
    console.print(
        f"after {growth.operations:,} more operations: {growth.resident_bytes:+,} bytes resident, "
        f"{growth.objects:+,} Python objects",
        style=None if growth.kept else "red",
    )


def write(path: Path, ratios: Sequence[Ratio], growth: Growth) -> None:
    """Everything, as JSON; times in seconds."""
    document = {
        "kept": growth.kept and all(ratio.kept for ratio in ratios),
        "ratios": [
            {
                "name": ratio.name,
                "compared_with": ratio.peer,
                "ratio": ratio.value,
                "limit": ratio.limit,
                "middle_half": ratio.spread,
                "rounds": len(ratio.product_seconds),
                "median_seconds": ratio.product_median_seconds,
                "compared_median_seconds": ratio.peer_median_seconds,
            }
            for ratio in ratios
        ],
        "growth": {
            "operations": growth.operations,
            "resident_bytes": growth.resident_bytes,
            "objects": growth.objects,
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
