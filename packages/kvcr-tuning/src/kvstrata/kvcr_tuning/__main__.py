# SPDX-License-Identifier: Apache-2.0
"""`python -m kvstrata.kvcr_tuning settings` prints all options as a Markdown table."""

import argparse
import sys
from collections.abc import Sequence

from kvstrata.kvcr.settings import markdown_table

from .config import TuningConfig


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m kvstrata.kvcr_tuning", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, title="commands")
    commands.add_parser("settings", help="print all options as a Markdown table")
    parser.parse_args(arguments)
    print(markdown_table(TuningConfig), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
