# SPDX-License-Identifier: Apache-2.0
"""The command that the sessions call, on a checkout with one small slice and its upstream."""

import shutil
from pathlib import Path

import msgspec
import pytest

from stackkit import Applied
from stackkit.export import Repository
from stackkit.export.__main__ import main

from .small import FILES, LABEL_FILES, STORE, Place, write

STACK = """\
title = "Labels"

[[upstreams]]
id = "shop"
repository = "https://example.invalid/shop"
branch = "main"
release = "1.0"

[[slices]]
id = "label"
package = "packages/label"
requires = []
pins = []
upstream = "shop"

[[slices.gates]]
id = "label-cpu"
kind = "cpu"
session = "validate-label"
required = true
min_tests = 1
"""
PROJECT = '[project]\nname = "kvstrata-label"\nversion = "0.1.0"\n'
LAYER = """\
from tests.export import small

LAYER = small.label_layer()
"""


@pytest.fixture
def checkout(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout beside the clone of its upstream, whose release is tagged."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    root = place.root / "checkout"
    files = {
        "stacks/labels.toml": STACK,
        "packages/label/pyproject.toml": PROJECT,
        "packages/label/upstream/layer.py": LAYER,
        **{f"packages/label/{name}": text for name, text in LABEL_FILES.items()},
    }
    for name, text in files.items():
        write(root / name, text)
    Repository.make(root).commit("all\n")
    place.clone()
    Repository(place.root / "clone").run("tag", "v1.0")
    return root


def call(checkout: Path, command: str, *options: str) -> int:
    clone = str(checkout.parent / "clone")
    return main([command, "label", "--root", str(checkout), "--upstream", clone, *options])


def test_an_export_prints_the_stat_of_each_layer(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(checkout, "export") == 0
    out = capsys.readouterr().out
    assert "label: [Store] Label goods" in out
    assert "3 files changed" in out
    assert len(list((checkout / "build/export/label/patches").glob("*.patch"))) == 1


def test_what_was_applied_is_left_for_the_session(checkout: Path) -> None:
    assert call(checkout, "apply") == 0
    record = (checkout / "build/apply/label/applied.json").read_bytes()
    applied = msgspec.json.decode(record, type=Applied)
    assert (Path(applied.tree) / "shop" / "label" / "ink.py").is_file()
    assert Path(applied.path) == Path(applied.tree)


def test_the_trailer_has_the_tree_of_the_package_committed_or_not(checkout: Path) -> None:
    repository = Repository(checkout)
    committed = repository.id("HEAD:packages/label")
    assert call(checkout, "export") == 0
    assert trailer(checkout).endswith(f"tree {committed}")
    write(checkout / "packages/label/new.txt", "not committed\n")
    assert call(checkout, "export") == 0
    changed = trailer(checkout)
    assert not changed.endswith(committed)
    repository.commit("more\n")
    assert changed.endswith(repository.id("HEAD:packages/label"))


def trailer(checkout: Path) -> str:
    exported = Repository(checkout / "build/export/label/repository")
    message = exported.run("log", "-1", "--format=%B", "export/label")
    return next(line for line in message.splitlines() if line.startswith("Origin: "))


def test_a_newer_base_is_reported_and_fails_if_an_edit_is_refused(
    checkout: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    same = place.clone({**FILES, "README.md": "Another shop.\n"})
    assert call(checkout, "export", "--base", same) == 0
    assert "5 of 5 edits apply" in capsys.readouterr().out
    moved = place.clone({**FILES, "shop/store.py": STORE.replace("def put", "def keep")})
    assert call(checkout, "export", "--base", moved) == 1
    assert "2 of 5 edits apply" in capsys.readouterr().out
    assert (checkout / "build/export/label/range-diff.txt").read_text().startswith("1:")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--base", "0" * 40), "no such commit there; fix: fetch it"),
        (("--upstream", "released"), "no such release here; known are none; fix: name one"),
        (("--upstream", "nowhere"), "no clone there; fix: git clone https://example.invalid/shop"),
    ],
)
def test_a_base_that_is_not_there_is_one_line(
    checkout: Path, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(checkout, "export", *options) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_pinned_commit_with_another_tree_is_refused(
    checkout: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = Repository(place.root / "clone").id("HEAD")
    pins = f'release = "1.0"\nbase_commit = "{commit}"\nbase_tree = "{"0" * 40}"\n'
    write(checkout / "stacks/labels.toml", STACK.replace('release = "1.0"\n', pins))
    assert call(checkout, "export") == 1
    assert "the stack pins 0000" in capsys.readouterr().err


def test_an_earlier_export_is_replaced(checkout: Path) -> None:
    assert call(checkout, "apply") == 0
    shutil.rmtree(checkout / "build/apply/label/patches")
    assert call(checkout, "apply") == 0
