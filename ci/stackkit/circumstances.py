# SPDX-License-Identifier: Apache-2.0
"""When, on what and with what a session ran; never the name of the machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from .checkout import Checkout


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    system: str
    processor: str
    cores: int
    memory_gib: int
    accelerators: tuple[str, ...]

    @classmethod
    def here(cls) -> Machine:
        pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return cls(
            system=f"{platform.system()} {platform.machine()}",
            processor=_processor(),
            cores=os.cpu_count() or 1,
            memory_gib=round(pages * page_bytes / 2**30),
            accelerators=accelerators(),
        )

    def __str__(self) -> str:
        devices = ", ".join(self.accelerators) or "no GPU"
        return f"{self.processor}, {self.cores} cores, {self.memory_gib} GiB, {devices}"


class Circumstances(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of one session.

    `started` is UTC in ISO 8601. `commit` held exactly the files of the checkout from the start to
    the end of the session; it is empty if no commit did. `distributions` are third-party ones.
    """

    started: str
    commit: str
    command: str
    python: str
    machine: Machine
    distributions: dict[str, str]

    @classmethod
    def begin(
        cls, checkout: Checkout, command: str, distributions: Mapping[str, str]
    ) -> Circumstances:
        return cls(
            started=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            commit=checkout.commit(),
            command=command,
            python=platform.python_version(),
            machine=Machine.here(),
            distributions=dict(distributions),
        )

    def end(self, checkout: Checkout) -> Circumstances:
        """What is known at the end of the session: whether the files are still the same."""
        unchanged = checkout.commit() == self.commit
        return self if unchanged else msgspec.structs.replace(self, commit="")


def accelerators() -> tuple[str, ...]:
    """The names of the CUDA devices of this machine, as its driver gives them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return tuple(done.stdout.split("\n")[:-1]) if done.returncode == 0 else ()


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
