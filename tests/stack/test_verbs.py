# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from stackkit import unpack_verbs


def test_libraries_that_are_unpacked_are_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "libibverbs.so.1").touch()
    told: list[str] = []
    assert unpack_verbs(tmp_path, told.append) == tmp_path
    assert not told


def test_without_apt_there_are_none_and_the_fix_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told: list[str] = []
    assert unpack_verbs(tmp_path / "verbs", told.append) is None
    assert "apt-get" in told[0]
    assert not (tmp_path / "verbs").exists()


def test_what_is_unpacked_are_the_libraries_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    scripts = {
        "apt-get": "touch libibverbs1_1_amd64.deb",
        "dpkg-deb": "mkdir -p unpacked/usr/lib && cd unpacked/usr/lib && "
        "touch libibverbs.so.1 libnl-3.so.200 ../README",
    }
    for name, text in scripts.items():
        program = programs / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    folder = unpack_verbs(tmp_path / "verbs", lambda text: None)
    assert folder is not None
    assert {each.name for each in folder.iterdir()} == {"libibverbs.so.1", "libnl-3.so.200"}
