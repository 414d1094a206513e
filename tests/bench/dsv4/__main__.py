# SPDX-License-Identifier: Apache-2.0
"""Command line of the benchmark."""

import sys

from command import begin, exit_status, parser, progress

_DESCRIPTION = """\
Measures SGLang's sliding-window allocator of DeepSeek-V4 over managed pools against native ones,
where no page crosses a map and where memory is mapped and unmapped in every layer. Each figure is
a ratio of two medians measured in turn, in this run. Then lets a load rise, go on and fall, and
compares physical memory with that of native pools. Writes dsv4.json and dsv4.svg."""


def main() -> int:
    command = parser(
        "dsv4", description=_DESCRIPTION, failure="the wrong memory was mapped", rounds=101
    )
    options = command.parse_args()
    console = begin()
    progress("importing SGLang")
    from .model import prepare

    prepare()
    from . import chart, growth, live_load, report, steady
    from .saving import kept

    ratios = []
    for what, measure in (("requests", steady.measure), ("growth", growth.measure)):
        progress(f"measuring {what}")
        for ratio in measure(options.rounds):
            progress(f"  {ratio.name}: {ratio.value:.3g}")
            ratios.append(ratio)
    progress("running a load that rises and falls")
    moments = list(live_load.measure())
    report.show(console, ratios, moments)
    options.output.mkdir(parents=True, exist_ok=True)
    report.write(options.output / "dsv4.json", ratios, moments)
    (options.output / "dsv4.svg").write_text(chart.picture(moments), encoding="utf-8")
    return exit_status(ratios, kept=kept(moments), strict=options.strict)


if __name__ == "__main__":
    sys.exit(main())
