# SPDX-License-Identifier: Apache-2.0
"""Give a wheel a local version label, so that it is never taken for the published one."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from .error import StackkitError

# The earliest time that a zip archive can hold: the same files give the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


class RelabelError(StackkitError):
    """A wheel whose name or metadata does not say what its version is."""


def relabel(wheel: Path, label: str, into: Path) -> Path:
    """Write `wheel` as version `<version>+<label>` into the folder `into`; returns its path."""
    name, version, *tags = wheel.stem.split("-")
    labelled = f"{version}+{label}"
    old, new = f"{name}-{version}.dist-info/", f"{name}-{labelled}.dist-info/"
    with zipfile.ZipFile(wheel) as archive:
        files = {file: archive.read(file) for file in archive.namelist() if file[-1] != "/"}
    try:
        metadata = files[old + "METADATA"]
        del files[old + "RECORD"]
    except KeyError as error:
        raise RelabelError(f"{wheel.name}: no {error.args[0]} in it") from error
    line = f"\nVersion: {version}\n".encode()
    if metadata.count(line) != 1:
        raise RelabelError(f"{wheel.name}: its metadata does not say Version: {version}")
    files[old + "METADATA"] = metadata.replace(line, f"\nVersion: {labelled}\n".encode())
    renamed = {file.replace(old, new, 1): content for file, content in sorted(files.items())}
    renamed[new + "RECORD"] = _record(renamed, new + "RECORD")
    target = into / ("-".join([name, labelled, *tags]) + ".whl")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in renamed.items():
            entry = zipfile.ZipInfo(file, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return target


def _record(files: dict[str, bytes], name: str) -> bytes:
    lines = []
    for file, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{file},sha256={digest},{len(content)}\n")
    return "".join([*lines, f"{name},,\n"]).encode()
