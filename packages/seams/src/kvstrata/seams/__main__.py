# SPDX-License-Identifier: Apache-2.0
"""`python -m kvstrata.seams`: see --help."""

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import groupby

from .comparison import installed_version, pin_for
from .hook import Seams
from .report import Row, compare, installed_seams, pins_to_paste, try_out

_DESCRIPTION = """\
Shows the hooks of the installed kvstrata slices against the installed upstream.

list (the default) compares the source of every hooked function with its recorded fingerprint, then
loads SGLang's plugins and applies the hooks in this very process, as a server does.
record prints the fingerprints of what is installed, to paste into the pins of a hook.

Exit code: 0 when every hook is fine or no slice is installed, else 1.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kvstrata.seams",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(trial=True, json=False)
    _add_list_options(parser)
    commands = parser.add_subparsers(dest="command", title="commands", metavar="list | record")
    _add_list_options(commands.add_parser("list", help="compare, apply and print (the default)"))
    record = commands.add_parser("record", help="print fingerprints to paste into pins")
    record.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="a dotted name: module, class if any, function"
        " (default: the targets of the installed slices)",
    )
    record.add_argument(
        "--upstream",
        default="sglang",
        metavar="NAME",
        help="the distribution that has the given targets (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.command == "record":
        return _record(options.targets, options.upstream)
    return _list(trial=options.trial, as_json=options.json)


def _add_list_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-trial",
        dest="trial",
        action="store_false",
        default=argparse.SUPPRESS,
        help="only compare sources: import nothing of the upstream and apply nothing",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print JSON instead of text",
    )


def _list(*, trial: bool, as_json: bool) -> int:
    with redirect_stdout(sys.stderr):  # importing an upstream may print
        seams, failures = installed_seams()
        rows = [row for each in seams for row in compare(each)]
        if trial:
            rows = try_out(seams, rows)
    if as_json:
        print(
            json.dumps({"hooks": [row.as_dict() for row in rows], "failures": failures}, indent=2)
        )
    elif rows or failures:
        print("\n\n".join([*_tables(rows), *failures]))
    else:
        print("No kvstrata slice with hooks is installed.")
    return 0 if not failures and all(row.is_good for row in rows) else 1


def _tables(rows: Sequence[Row]) -> list[str]:
    tables: list[str] = []
    for (name, switch, upstream), group in groupby(
        rows, key=lambda row: (row.slice, row.switch, row.upstream)
    ):
        lines = [f"{name}  ({upstream})", f"  switched on by: {switch}"]
        for row in group:
            outcome = row.status if row.trial is None else f"{row.status}, {row.trial}"
            lines += ["", f"  {row.kind:<8} {row.target}", f"    status: {outcome}"]
            if row.detail:
                lines.append(f"    detail: {row.detail}")
            lines.append(
                textwrap.fill(
                    row.why, 96, initial_indent="    why:    ", subsequent_indent=" " * 12
                )
            )
        tables.append("\n".join(lines))
    return tables


def _record(targets: Sequence[str], upstream: str) -> int:
    seams, failures = installed_seams() if not targets else ([], [])
    lines: list[str] = []
    groups = [(upstream, list(targets))] if targets else [_targets(each) for each in seams]
    for distribution, names in groups:
        found, missing = pins_to_paste(distribution, names)
        lines += found
        failures += missing
    if not targets and not seams and not failures:
        print("No kvstrata slice with hooks is installed; name the targets to record.")
    for line in lines:
        print(line)
    for line in failures:
        print(line, file=sys.stderr)
    return 1 if failures else 0


def _targets(seams: Seams) -> tuple[str, list[str]]:
    version = installed_version(seams.upstream)
    return seams.upstream, [pin_for(hook, version).target for hook in seams.hooks]


if __name__ == "__main__":
    sys.exit(main())
