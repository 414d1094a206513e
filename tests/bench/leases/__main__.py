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
Measures exact-id's leases against SGLang's free list and against kvcached's manager, in pools of
two sizes, and with their memory against kvcached's own calls. Each figure is a ratio of two medians
measured in turn, in this run. Then puts a load in waves on SGLang's DeepSeek-V4 pool and compares,
at each step, what is mapped with what has to be. Writes exact-id.json."""
_EPILOG = """\
Exit status: 0; 1 if the wrong memory was mapped, or with --strict if a ratio is beyond its limit. A
busy machine widens the spread, which is printed."""
_WIDTH_OF_A_FILE = 160


def main() -> int:
    options = _parser().parse_args()
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")

    def progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    progress(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; importing SGLang")
    from elastic.model import Size, make_model, prepare

    prepare()
    model = make_model(Size())
    from . import bookkeeping, mapping, report, waves

    progress("measuring leases")
    ratios = list(bookkeeping.measure(options.rounds))
    progress("measuring leases with their memory")
    ratios += mapping.measure(options.rounds)
    progress(f"running a waved load of {options.steps} steps")
    exactness = waves.measure(model, options.steps, progress)
    report.show(console, ratios, exactness)
    options.output.mkdir(parents=True, exist_ok=True)
    report.write(options.output / "exact-id.json", ratios, exactness)
    within = all(ratio.kept for ratio in ratios)
    return 0 if exactness.kept and (within or not options.strict) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m leases",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), metavar="FOLDER", help="where to write"
    )
    parser.add_argument(
        "--rounds", type=int, default=201, metavar="N", help="how often each is measured"
    )
    parser.add_argument(
        "--steps", type=int, default=80, metavar="N", help="steps in which requests come"
    )
    parser.add_argument("--strict", action="store_true", help="fail if a ratio is beyond its limit")
    return parser


if __name__ == "__main__":
    sys.exit(main())
