# SPDX-License-Identifier: Apache-2.0
"""Command line of the benchmark."""

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from pathlib import Path

from command import begin, machine, progress
from rich.table import Table

from kvstrata_host.model import DEMO, build_model
from kvstrata_host.server import ServerError

from .case import Case, cases
from .outcome import HEADS, Outcome, markdown, write_csv, write_json
from .pair import Pair, ServingError
from .workload import Burst, Workload

_DESCRIPTION = """\
Sends prompts that share prefixes to a real server, whose storage is KVCR, SGLang's file backend or
none, and holds the prefixes itself or finds them at a second server. Each option of
kvstrata-kvcr-tuning is measured alone and with all others. Writes serving.csv, serving.json and
serving.md."""

_WORKLOAD = Workload(groups=2, requests_per_group=2, prefix_tokens=1024, end_tokens=32)


def main() -> int:
    options = _parser().parse_args()
    console = begin()
    options.output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(dir=options.output, prefix="serving-"))
    try:
        model = folder / "model"
        build_model(model, DEMO)
        pair = Pair(model, folder, _WORKLOAD, options.start_timeout, _starting)
        with pair.running():
            progress(f"both servers are up after {time.monotonic() - began:.0f} s")
            outcomes = _measure(pair, cases(), began + 60 * options.minutes)
    except ServerError as error:
        progress(f"the benchmark could not run: {error}")
        return 2
    shutil.rmtree(folder)
    facts = {**machine(), "model": f"{DEMO.layers} layers, hidden {DEMO.hidden}, float32"}
    table = Table(*HEADS)
    for outcome in outcomes:
        table.add_row(*outcome.row(), style="red" if outcome.failure else None)
    console.print(table)
    write_csv(options.output / "serving.csv", outcomes)
    write_json(options.output / "serving.json", outcomes, facts)
    text = markdown(outcomes, facts)
    (options.output / "serving.md").write_text(text, encoding="utf-8")
    if options.docs:
        (options.docs / "guide" / "performance-serving.md").write_text(text, encoding="utf-8")
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def _measure(pair: Pair, wanted: tuple[Case, ...], until: float) -> list[Outcome]:
    """Every case once, and again in the other order, as long as there is time."""
    bursts: dict[str, list[Burst]] = {case.name: [] for case in wanted}
    failures: dict[str, str] = {}
    there_and_back = itertools.cycle([*wanted, *reversed(wanted)])
    for number, case in enumerate(there_and_back):
        if time.monotonic() > until or len(failures) == len(wanted):
            break
        if case.name not in failures:
            try:
                with pair.storing(case):
                    # Threads, allocators and connections are new to the first request.
                    pair.measure(case, _WORKLOAD.warm_up(), f"{case.name}/{number}/first")
                    burst = pair.measure(case, _WORKLOAD, f"{case.name}/{number}")
                bursts[case.name].append(burst)
                progress(f"{case.name}: {burst.tokens_per_second:.0f} tokens/s")
            except (ServerError, ServingError) as error:
                failures[case.name] = str(error).splitlines()[0]
                progress(f"{case.name}: {failures[case.name]}")
    return [Outcome(case, tuple(bursts[case.name]), failures.get(case.name, "")) for case in wanted]


def _starting(name: str, message: str, *, elapsed_s: float) -> None:
    progress(f"server {name}: {message} ({elapsed_s:.0f} s)")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m serving",
        description=_DESCRIPTION,
        epilog="Exit status: 0; 1 if a case failed; 2 if the servers did not run.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench"), metavar="FOLDER", help="where to write"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=9.0,
        metavar="N",
        help="no round begins that would end after",
    )
    parser.add_argument(
        "--start-timeout", type=float, default=300.0, metavar="S", help="for the servers to start"
    )
    parser.add_argument(
        "--docs", type=Path, metavar="FOLDER", help="also write into the documentation there"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
