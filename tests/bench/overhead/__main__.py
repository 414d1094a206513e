# SPDX-License-Identifier: Apache-2.0
"""Command line of the benchmark."""

import sys

from command import begin, exit_status, parser, progress

_DESCRIPTION = """\
Measures what kvstrata-kvcr adds: a hint on SGLang's scheduler thread, reading a hint, a backup and
a local restore against KVCR alone on the same references, and memory after many operations. Each
figure is a ratio of two medians measured in turn, in this run. Writes overhead.json."""


def main() -> int:
    command = parser("overhead", description=_DESCRIPTION, failure="memory grew", rounds=101)
    command.add_argument(
        "--operations", type=int, default=10_000, metavar="N", help="for the growth of memory"
    )
    options = command.parse_args()
    console = begin()
    from hicache import host_memory

    from . import growth, hinting, report, transfers

    progress("measuring hints")
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
    return exit_status(ratios, kept=grown.kept, strict=options.strict)


if __name__ == "__main__":
    sys.exit(main())
