# SPDX-License-Identifier: Apache-2.0
"""`python -m kvstrata.kvcr`: see --help."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

import msgspec

from .config import KvcrConfig
from .doctor import Finding, examine
from .settings import markdown_table

_DOCTOR = """\
Checks this host before a server is started on it: versions, settings, bind_host, ports, memory,
/dev/shm, SGLang's page hash, the hooks, the transports that NIXL finds, and a restore between two
processes with real KVCR, of which every byte is compared. Takes about a minute, and some hundred
MiB of memory.

Each line is "ok", "warn" (it runs, but see the fix) or "fail". Exit code: 1 if anything failed.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kvstrata.kvcr", description="KVCR as an L3 backend of SGLang's HiCache."
    )
    commands = parser.add_subparsers(dest="command", required=True, title="commands")
    doctor = commands.add_parser(
        "doctor",
        help="check this host and say what to fix",
        description=_DOCTOR,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument(
        "extra_config",
        nargs="?",
        metavar="EXTRA_CONFIG",
        help="what --hicache-storage-backend-extra-config will be given: JSON, or @ and a file"
        " (default: the default settings)",
    )
    doctor.add_argument(
        "--ranks", type=_positive, default=1, help="ranks of the server on this host (default: 1)"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of text")
    commands.add_parser("settings", help="print all settings as a Markdown table")
    options = parser.parse_args(arguments)
    if options.command == "settings":
        print(markdown_table(KvcrConfig), end="")
        return 0
    return _doctor(options.extra_config, options.ranks, as_json=options.json)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def _doctor(extra_config: str | None, ranks: int, *, as_json: bool) -> int:
    out = sys.stdout
    findings: list[Finding] = []
    with redirect_stdout(sys.stderr):  # importing an upstream may print
        for finding in examine(extra_config, ranks, _announce):
            findings.append(finding)
            if not as_json:
                print(_line(finding), file=out, flush=True)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(findings), indent=2).decode())
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def _announce(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)


def _line(finding: Finding) -> str:
    line = f"{finding.level:<4}  {finding.check}: {finding.detail}"
    return f"{line}\n      {finding.fix}" if finding.fix else line


if __name__ == "__main__":
    sys.exit(main())
