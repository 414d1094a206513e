# SPDX-License-Identifier: Apache-2.0
"""What the command lines of the benchmarks have in common."""

import argparse
import contextlib
import logging
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from paired import Ratio
from rich.console import Console

_WIDTH_OF_A_FILE = 160
_VERSIONS = ("sglang", "kvcr", "nixl", "mooncake-transfer-engine-non-cuda", "ucxx-cu12", "torch")


def parser(name: str, *, description: str, failure: str, rounds: int) -> argparse.ArgumentParser:
    """Options of a benchmark; `failure` is what it fails for besides its ratios."""
    made = argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=description,
        epilog=(
            f"Exit status: 0; 1 if {failure}, or with --strict if a ratio is beyond its limit. "
            "A busy machine widens the spread, which is printed."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    made.add_argument(
        "--output", type=Path, default=Path("build/bench"), metavar="FOLDER", help="where to write"
    )
    made.add_argument(
        "--rounds", type=int, default=rounds, metavar="N", help="how often each is measured"
    )
    made.add_argument("--strict", action="store_true", help="fail if a ratio is beyond its limit")
    return made


def begin() -> Console:
    """Leave out what others log and warn of; the load of the machine is told at once."""
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    progress(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, str]:
    """What a figure has to be read with: facts in words, by name."""
    facts = {
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
    }
    for name in _VERSIONS:
        with contextlib.suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts


def exit_status(ratios: Sequence[Ratio], *, kept: bool, strict: bool) -> int:
    """`kept` is whether what is held besides the ratios was so."""
    return 0 if kept and not (strict and not all(ratio.kept for ratio in ratios)) else 1
