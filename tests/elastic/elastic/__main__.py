# SPDX-License-Identifier: Apache-2.0
"""Command line of the demo."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from demo.environment import Environment
from demo.progress import Progress
from rich.console import Console

from .kvctl import KvctlError
from .model import ModelError, Size, make_model, prepare

_DESCRIPTION = """\
Fills and empties SGLang's own DeepSeek-V4 pools, of which sliding window, C4 KV and packed indexer
are managed, on a machine that needs no GPU. First those of a whole model, at several loads and
under pressure; then smaller ones under a load in waves, with a limit that kvctl sets half-way.
Writes report.html, report.json and elastic.svg."""
_EPILOG = "Exit status: 0 if every claim holds, 1 if one does not, 2 if the demo could not run."
_DISTRIBUTIONS = (
    "sglang",
    "kvcached",
    "torch",
    "kvstrata-seams",
    "kvstrata-exact-id",
    "kvstrata-c4-kv",
    "kvstrata-packed-indexer",
)
_WIDTH_OF_A_FILE = 120
_LEAST_STEPS = 60


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)
    output: Path = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    progress = Progress(console)
    environment = Environment.current(_DISTRIBUTIONS)
    progress.step("pools", "importing SGLang and kvcached")
    prepare()
    from . import chart, page
    from .fill import Fill, make_whole_model
    from .report import Report
    from .story import Plan, Story, StoryError

    plan = Plan(steps=options.steps, crest=options.crest, seed=options.seed)
    try:
        whole = make_whole_model()
        progress.step("pools", f"of a whole model, {whole.mapped_bytes >> 20} MiB mapped")
        seen = Fill(whole, plan.seed).play(lambda line: progress.step("fill", line))
        whole.pools.close()
        model = make_model(Size())
        progress.step("pools", f"smaller ones, {model.mapped_bytes >> 20} MiB mapped")
        outcome = Story(model, plan, lambda line: progress.step("load", line)).play(*seen)
    except (ModelError, StoryError, KvctlError) as error:
        console.print(f"\nThe demo could not run: {error}", markup=False, style="red")
        return 2
    report = Report.of(plan, outcome, environment)
    report.write_json(output / "report.json")
    page.write(report, output / "report.html")
    (output / "elastic.svg").write_text(chart.picture(outcome), encoding="utf-8")
    console.print()
    report.print(console)
    progress.step("report", str(output / "report.html"))
    for claim in report.failed:
        text = f"Failed claim {claim.id}: {claim.sentence} Seen: {claim.evidence}."
        console.print(text, markup=False, style="red")
    return 1 if report.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m elastic",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/demo-elastic"),
        metavar="FOLDER",
        help="where to write",
    )
    parser.add_argument(
        "--steps", type=_steps, default=120, metavar="N", help="steps in which requests come"
    )
    parser.add_argument(
        "--crest", type=_positive, default=8, metavar="N", help="arrivals a step at a crest"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="what requests are drawn from"
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _steps(text: str) -> int:
    value = int(text)
    if value < _LEAST_STEPS:
        raise argparse.ArgumentTypeError(
            f"{value} is not at least {_LEAST_STEPS}: below, requests last longer than a wave"
        )
    return value


if __name__ == "__main__":
    sys.exit(main())
