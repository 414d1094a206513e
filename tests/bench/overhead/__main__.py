# SPDX-License-Identifier: Apache-2.0
"""Command line of the benchmark."""

import argparse
import logging
import os
import sys
import warnings
from pathlib import Path

from rich.console import Console

_DESCRIPTION = """\
Measures what kvstrata-kvcr adds: a hint on SGLang's scheduler thread, reading a hint, a backup and
a local restore against KVCR alone on the same references, and memory after many operations. Each
figure is a ratio of two medians measured in turn, in this run. Writes overhead.json."""
_EPILOG = """\
Exit status: 0; 1 if memory grew, or with --strict if a ratio is beyond its limit. A busy machine
widens the spread, which is printed."""
_WIDTH_OF_A_FILE = 160


def main() -> int:
    options = _parser().parse_args()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    from . import growth, hinting, report, transfers
    from .host import host_memory

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    progress(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; measuring hints")
    ratios = list(hinting.measure(options.rounds))
    memory = host_memory(transfers.PAGE_BYTES, transfers.HOST_PAGES)
    progress("measuring a backup and a restore against KVCR alone")
    ratios += transfers.measure(memory, options.rounds)
    progress(f"running {options.operations:,} operations")
    grown = growth.measure(
        memory,
        options.operations,
        lambda done: progress(f"  {done:,}") if done % 2048 == 0 else None,
    )
    report.show(console, ratios, grown)
    options.output.mkdir(parents=True, exist_ok=True)
    report.write(options.output / "overhead.json", ratios, grown)
    within = all(ratio.kept for ratio in ratios)
    return 0 if grown.kept and (within or not options.strict) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m overhead",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), metavar="FOLDER", help="where to write"
    )
    parser.add_argument(
        "--rounds", type=int, default=101, metavar="N", help="how often each is measured"
    )
    parser.add_argument(
        "--operations", type=int, default=10_000, metavar="N", help="for the growth of memory"
    )
    parser.add_argument("--strict", action="store_true", help="fail if a ratio is beyond its limit")
    return parser


if __name__ == "__main__":
    sys.exit(main())
