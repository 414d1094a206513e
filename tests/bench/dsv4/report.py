# SPDX-License-Identifier: Apache-2.0
"""The figures, for the terminal and for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from paired import Ratio
from results import ratio_document, ratio_table, verdict
from rich.console import Console
from rich.table import Table

from .saving import Moment, kept

_MIB = 1 << 20


def show(console: Console, ratios: Sequence[Ratio], moments: Sequence[Moment]) -> None:
    """One row per ratio, then one per moment of the load."""
    console.print(ratio_table(ratios))
    console.print(verdict(ratios))
    table = Table()
    for heading in ("live load", "history", "pools", "native", "physical", "share", "live pages"):
        table.add_column(heading)
    for moment in moments:
        pools = ", ".join(
            f"{each.pool} {each.mapped_bytes / each.native_bytes:.0%}" for each in moment.holdings
        )
        table.add_row(
            f"{moment.load:.0%}",
            moment.history,
            pools,
            _mib(moment.native_bytes),
            _mib(moment.mapped_bytes),
            f"{moment.share:.0%}",
            _mib(moment.live_bytes),
            style=None if moment.exact else "red",
        )
    console.print(table)


def write(path: Path, ratios: Sequence[Ratio], moments: Sequence[Moment]) -> None:
    """Everything, as JSON; times in seconds."""
    document = {
        "kept": kept(moments) and all(ratio.kept for ratio in ratios),
        "ratios": [ratio_document(ratio) for ratio in ratios],
        "moments": [
            {
                "load": moment.load,
                "history": moment.history,
                "native_bytes": moment.native_bytes,
                "mapped_bytes": moment.mapped_bytes,
                "live_bytes": moment.live_bytes,
                "share": moment.share,
                "exact": moment.exact,
                "pools": [asdict(each) for each in moment.holdings],
            }
            for moment in moments
        ],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.0f} MiB"
