# SPDX-License-Identifier: Apache-2.0
"""Command line of the benchmark."""

import argparse
import sys
import tempfile
from pathlib import Path

from command import begin, machine, progress

from . import plots, report
from .family import families
from .grid import full, quick
from .limits import limits, missed_goals
from .measure import Plan, Run

_DESCRIPTION = """\
Moves the same pages of a host pool of SGLang's through KVCR, through what KVCR stands on, and
through SGLang's other storage backends: set, get and exists, from the own memory and from a second
process. All take turns. Each point ends with a transfer of which every byte is compared. Writes
stores.csv, stores.json, stores.md and two plots."""


def main() -> int:
    options = _parser().parse_args()
    console = begin()
    points = quick() if options.quick else full()
    plan = Plan(
        points,
        seconds=options.seconds or (60.0 if options.quick else 390.0),
        starts=2 if options.quick else 4,
    )
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.output, prefix="scratch-") as scratch:
        known = families(Path(scratch), options.verbs)
        results = Run(plan, options.output / "logs", progress).of(known, machine())
    if not results.series:
        progress("nothing could be measured; see the reasons above")
        return 1
    products = [each.name for each in known if each.is_product]
    report.show(console, results, products)
    report.write_csv(options.output / "stores.csv", results)
    report.write_json(options.output / "stores.json", results, products)
    _write(options.output, "stores.md", report.markdown(results, products))
    drawings = {"speed": plots.speeds(results), "latency": plots.latencies(results)}
    for name, drawing in drawings.items():
        _write(options.output, f"kvcr-{name}.svg", drawing)
    if options.docs:
        _write(options.docs / "guide", "performance-stores.md", report.markdown(results, products))
        for name, drawing in drawings.items():
            _write(options.docs / "_static", f"kvcr-{name}.svg", drawing)
    missed = missed_goals(limits(results, products[-1]))
    return 1 if results.damaged or results.failed or (options.strict and missed) else 0


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stores",
        description=_DESCRIPTION,
        epilog=(
            "Exit status: 0; 1 if a contender moved wrong bytes or broke down, or with --strict "
            "if a goal was missed. A contender that cannot run here is named with the reason."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), metavar="FOLDER", help="where to write"
    )
    parser.add_argument("--quick", action="store_true", help="only what the goals are about")
    parser.add_argument("--strict", action="store_true", help="fail if a goal is missed")
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="of measuring in all; 0: by the grid",
    )
    parser.add_argument(
        "--verbs", type=Path, metavar="FOLDER", help="libibverbs, where the system has none"
    )
    parser.add_argument(
        "--docs", type=Path, metavar="FOLDER", help="also write into the documentation there"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
