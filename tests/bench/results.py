# SPDX-License-Identifier: Apache-2.0
"""Ratios, for the terminal and for programs."""

from collections.abc import Mapping, Sequence

from paired import Ratio
from rich.table import Table


def ratio_table(ratios: Sequence[Ratio]) -> Table:
    """One row per ratio."""
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
            "" if ratio.limit is None else f"{ratio.limit:g}",
            style=None if ratio.kept else "red",
        )
    return table


def verdict(ratios: Sequence[Ratio]) -> str:
    """Which ratios are beyond their limits."""
    beyond = [ratio.name for ratio in ratios if not ratio.kept]
    return f"beyond the limit: {'; '.join(beyond)}" if beyond else "every ratio is within its limit"


def ratio_document(ratio: Ratio) -> Mapping[str, object]:
    """One ratio for JSON; times in seconds."""
    return {
        "name": ratio.name,
        "compared_with": ratio.peer,
        "ratio": ratio.value,
        "limit": ratio.limit,
        "middle_half": ratio.spread,
        "rounds": len(ratio.product_seconds),
        "median_seconds": ratio.product_median_seconds,
        "compared_median_seconds": ratio.peer_median_seconds,
    }
