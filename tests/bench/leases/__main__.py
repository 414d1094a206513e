# SPDX-License-Identifier: Apache-2.0
"""Command line of the benchmark."""

import sys

from command import begin, exit_status, parser, progress

_DESCRIPTION = """\
Measures exact-id's leases against SGLang's free list and against kvcached's manager, in pools of
two sizes, and with their memory against kvcached's own calls. Each figure is a ratio of two medians
measured in turn, in this run. Then puts a load in waves on SGLang's DeepSeek-V4 pool and compares,
at each step, what is mapped with what has to be. Writes exact-id.json."""


def main() -> int:
    command = parser(
        "leases", description=_DESCRIPTION, failure="the wrong memory was mapped", rounds=201
    )
    command.add_argument(
        "--steps", type=int, default=80, metavar="N", help="steps in which requests come"
    )
    options = command.parse_args()
    console = begin()
    progress("importing SGLang")
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
    return exit_status(ratios, kept=exactness.kept, strict=options.strict)


if __name__ == "__main__":
    sys.exit(main())
