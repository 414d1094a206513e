# SPDX-License-Identifier: Apache-2.0
"""Command line of the demo."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kvstrata_host.model import DEMO, build_model
from kvstrata_host.server import ServerError

from .environment import Environment
from .progress import Progress
from .replica import PAGE_SIZE_TOKENS
from .serverlog import LogFormatError
from .story import Plan, Story
from .tuning import all_options

_DESCRIPTION = """\
Starts three real SGLang servers on this machine, which needs no GPU, and shows that they share the
KV cache of a long prompt through KVCR: computed by one, restored by others from its DRAM or their
own, with equal answers. Writes report.html, report.json and demo.svg."""
_EPILOG = "Exit status: 0 if every claim holds, 1 if one does not, 2 if the demo could not run."

_WIDTH_OF_A_FILE = 120


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)
    output: Path = options.output.absolute()
    logs = output / "logs"
    plan = Plan(
        ranks=options.tp,
        prompt_tokens=options.prompt_tokens,
        new_tokens=options.new_tokens,
        seed=options.seed,
        start_timeout_s=options.start_timeout,
        tuning=all_options() if options.tuning else {},
    )
    shutil.rmtree(logs, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
    from transformers.utils import logging as transformers_log

    progress = Progress(console)
    environment = Environment.current()
    try:
        model = output / "model"
        progress.step("model", f"{DEMO.layers} layers, hidden {DEMO.hidden}, random weights")
        transformers_log.disable_progress_bar()
        build_model(model, DEMO)
        outcome = Story(plan, model=model, logs=logs, progress=progress).play()
    except (ServerError, LogFormatError) as error:
        console.print(f"\nThe demo could not run: {error}", markup=False, style="red")
        console.print(f"Server logs: {logs}", markup=False)
        return 2
    finally:
        shutil.rmtree(output / "model", ignore_errors=True)

    from . import chart, page
    from .report import Report

    report = Report.of(plan, outcome, environment)
    report.write_json(output / "report.json")
    page.write(report, output / "report.html")
    (output / "demo.svg").write_text(chart.picture(outcome.scenes), encoding="utf-8")
    console.print()
    report.print(console)
    progress.step("report", str(output / "report.html"))
    for claim in report.failed:
        text = f"Failed claim {claim.id}: {claim.sentence} Seen: {claim.evidence}."
        console.print(text, markup=False, style="red")
    if report.failed:
        console.print(f"Server logs: {logs}", markup=False)
        return 1
    if options.keep_logs:
        console.print(f"Server logs: {logs}", markup=False)
    else:
        shutil.rmtree(logs)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo"), metavar="FOLDER", help="where to write"
    )
    parser.add_argument(
        "--prompt-tokens",
        type=_prompt_tokens,
        default=2048,
        metavar="N",
        help="length of the prompt",
    )
    parser.add_argument(
        "--tp",
        type=int,
        choices=(1, 2),
        default=1,
        help="tensor-parallel ranks of each server; each rank is a process with a KVCR of its own",
    )
    parser.add_argument(
        "--new-tokens", type=_positive, default=16, metavar="N", help="length of the answer"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="what prompts are drawn from"
    )
    parser.add_argument(
        "--start-timeout",
        type=_positive,
        default=600,
        metavar="SECONDS",
        help="how long the servers may take to start, together",
    )
    parser.add_argument(
        "--keep-logs", action="store_true", help="keep the servers' logs even if every claim holds"
    )
    parser.add_argument(
        "--tuning", action="store_true", help="with all options of kvcr-tuning that fit the model"
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def _prompt_tokens(text: str) -> int:
    value = int(text)
    most = DEMO.context_tokens - 512
    if not 512 <= value <= most or value % PAGE_SIZE_TOKENS:
        raise argparse.ArgumentTypeError(
            f"{value} is not a multiple of {PAGE_SIZE_TOKENS} from 512 to {most}: below, SGLang "
            "may not look into storage, and above, the model has no positions"
        )
    return value


if __name__ == "__main__":
    sys.exit(main())
