# SPDX-License-Identifier: Apache-2.0
"""What the demo ran on."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTIONS = ("sglang", "kvcr", "nixl", "torch", "kvstrata-seams", "kvstrata-kvcr")


@dataclass(frozen=True)
class Environment:
    """Versions and the machine; `load` is the run queue's length over the last minute."""

    versions: dict[str, str]
    python: str
    system: str
    cpu_count: int
    load: float

    @classmethod
    def current(cls, distributions: Sequence[str] = DISTRIBUTIONS) -> "Environment":
        return cls(
            versions={name: _version(name) for name in distributions},
            python=platform.python_version(),
            system=f"{platform.system()} {platform.machine()}",
            cpu_count=os.cpu_count() or 0,
            load=os.getloadavg()[0],
        )


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
