# SPDX-License-Identifier: Apache-2.0
"""kvcached's own kvctl, as an operator runs it beside the server."""

import json
import subprocess
import sys

_TIMEOUT_S = 240


class KvctlError(RuntimeError):
    """kvctl failed, or did not show the pool."""


def set_limit(segment: str, limit_bytes: int) -> None:
    """`kvctl limit SEGMENT BYTES`."""
    _kvctl("limit", segment, str(limit_bytes))


def used_bytes(segment: str) -> int:
    """The memory in use that `kvctl list` shows."""
    for row in json.loads(_kvctl("list", "--json", segment)):
        if row["ipc"] == segment:
            return int(row["used_bytes"])
    raise KvctlError(f"kvctl does not list {segment}")


def _kvctl(*arguments: str) -> str:
    command = [sys.executable, "-m", "kvcached.cli.kvctl", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise KvctlError(f"kvctl {' '.join(arguments)}: no end after {_TIMEOUT_S} s") from error
    if done.returncode:
        raise KvctlError(f"kvctl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
