# SPDX-License-Identifier: Apache-2.0
"""Command line of the fault loop."""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from demo.progress import Progress
from demo.replica import PAGE_SIZE_TOKENS
from demo.serverlog import LogFormatError
from demo.tuning import all_options
from rich.console import Console

from kvstrata_host.model import TINY, build_model
from kvstrata_host.server import ServerError

from .campaign import Campaign, Plan

_DESCRIPTION = """\
Makes faults, one after the other, on a real SGLang server from whose KVCR memory another one
restores prompts, and compares every answer with one that was computed without any cache."""
_EPILOG = "Exit status: 0 if nothing was wrong, hung or lost, 1 if so, 2 if the loop could not run."
_WIDTH_OF_A_FILE = 160


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    output: Path = options.output.absolute()
    logs = output / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
    progress = Progress(
        Console(stderr=True, width=None if sys.stderr.isatty() else _WIDTH_OF_A_FILE)
    )
    plan = Plan(
        faults=options.faults,
        prompts=8,
        prompt_tokens=1024,
        new_tokens=8,
        seed=options.seed,
        start_timeout_s=600.0,
        tuning=all_options() if options.tuning else {},
    )
    try:
        model = build_model(output / "model", TINY)
        page_bytes = TINY.kv_bytes_per_token * PAGE_SIZE_TOKENS
        report = Campaign(
            plan, model=model, page_bytes=page_bytes, logs=logs, progress=progress
        ).run()
    except (ServerError, LogFormatError) as error:
        progress.step("faults", f"could not run: {error}", style="red")
        return 2
    finally:
        shutil.rmtree(output / "model", ignore_errors=True)
    text = json.dumps(report.to_json(), indent=2)
    (output / "report.json").write_text(f"{text}\n", encoding="utf-8")
    with (output / "report.txt").open("w", encoding="utf-8") as file:
        report.print(Console(file=file, width=_WIDTH_OF_A_FILE))
    report.print(Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE))
    return 1 if report.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m faults",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--faults", type=int, default=50, metavar="N", help="how many faults")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="what is drawn from")
    parser.add_argument(
        "--output", type=Path, default=Path("build/faults"), metavar="FOLDER", help="where to write"
    )
    parser.add_argument(
        "--tuning", action="store_true", help="with all options of kvcr-tuning that fit the model"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
