# SPDX-License-Identifier: Apache-2.0
import shutil
from pathlib import Path

import pytest

from stackkit import Recipe, SetupError, check_compiler


def lock(folder: Path, text: str) -> Path:
    path = folder / "lock.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_environment_is_reused_until_its_inputs_change(tmp_path: Path) -> None:
    path, said = tmp_path / "made", list[str]()
    first = Recipe((lock(tmp_path, "# nothing\n"),)).make(path, said.append)
    marker = first.site_packages / "marker"
    marker.touch()

    Recipe((lock(tmp_path, "# nothing\n"),)).make(path, said.append)
    assert marker.exists()

    Recipe((lock(tmp_path, "# other\n"),)).make(path, said.append)
    assert not marker.exists()
    assert first.python.exists()
    assert any("made from other inputs" in line for line in said)


def test_an_environment_that_was_left_half_made_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "made"
    impossible = Recipe((lock(tmp_path, "kvstrata-none @ file:///nowhere/none.whl\n"),))
    with pytest.raises(SetupError, match="exited with"):
        impossible.make(path, lambda line: None)
    leftover = path / "leftover"
    leftover.touch()

    made = Recipe((lock(tmp_path, "# nothing\n"),)).make(path, lambda line: None)

    assert not leftover.exists()
    assert made.python.exists()


def test_a_missing_compiler_is_one_line_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(SetupError, match=r"lacks g\+\+.*apt-get install g\+\+") as raised:
        check_compiler()

    assert "\n" not in str(raised.value)


def test_missing_headers_name_their_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SetupError, match=r"apt-get install python3-dev libssl-dev$"):
        check_compiler()
