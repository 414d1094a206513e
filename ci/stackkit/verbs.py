# SPDX-License-Identifier: Apache-2.0
"""Debian's libibverbs in a folder of its own.

Mooncake links to it. Installed in the system, every UCX loads it too, and a process of NIXL's that
has done so may crash when it ends.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_PACKAGES = ("libibverbs1", "libnl-3-200", "libnl-route-3-200")
_WANTED = "libibverbs.so.1"


def unpack_verbs(folder: Path, report: Callable[[str], None]) -> Path | None:
    """The folder with the libraries, unpacked at the first call; None where apt cannot get them."""
    if (folder / _WANTED).exists():
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        try:
            _run(["apt-get", "download", *_PACKAGES], Path(scratch))
            for archive in sorted(Path(scratch).glob("*.deb")):
                _run(["dpkg-deb", "--extract", str(archive), "unpacked"], Path(scratch))
        except (OSError, subprocess.CalledProcessError) as error:
            report(f"{_WANTED} cannot be had ({error}); fix: apt-get update, on Debian")
            return None
        folder.mkdir(parents=True, exist_ok=True)
        for library in Path(scratch, "unpacked").rglob("lib*.so.*"):
            shutil.copy(library, folder / library.name)
    return folder


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
