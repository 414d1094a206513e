# SPDX-License-Identifier: Apache-2.0
"""A process and all its descendants as one group (Linux), so that none is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

_GONE_TIMEOUT_S = 60.0


class ProcessGroup:
    """Started by its constructor as the leader of a new session; output goes to `log`."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: BinaryIO
    ) -> None:
        self._leader = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._ended = False

    @property
    def pid(self) -> int:
        """The process id of the leader, which is the id of the group."""
        return self._leader.pid

    @property
    def exit_code(self) -> int | None:
        """The leader's exit code, None while it runs."""
        return self._leader.poll()

    def members(self) -> tuple[int, ...]:
        """The processes of the group of which a thread still runs.

        The first thread may be a zombie long before the others are: until the last one has ended,
        the process keeps its memory and its ports.
        """
        found = set()
        for stat in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.pid and state not in "ZX":
                    found.add(int(stat.parents[2].name))
        return tuple(sorted(found))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every process of the group; does nothing if it is gone."""
        if self._ended:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def stop(self, timeout_s: float) -> None:
        """Ask the leader to end (SIGTERM), then kill what is left of the group."""
        self.send(signal.SIGCONT)
        self._leader.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._leader.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End every process of the group at once (SIGKILL).

        Raises TimeoutError if one outlives that by a minute, as one in uninterruptible sleep would.
        To give back gigabytes takes a busy machine more than ten seconds.
        """
        if self._ended:  # its id may be another group's by now
            return
        self.send(signal.SIGKILL)
        deadline = time.monotonic() + _GONE_TIMEOUT_S
        while left := self.members():
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {left} of group {self.pid} outlive SIGKILL")
            time.sleep(0.02)
        self._leader.wait()
        self._ended = True
