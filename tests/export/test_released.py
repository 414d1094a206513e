# SPDX-License-Identifier: Apache-2.0
"""kvcr and what is above it on the released SGLang: what their pull requests are made of."""

import os
from pathlib import Path

import pytest

from stackkit import Workspace
from stackkit.export import (
    Branch,
    ExportError,
    Repository,
    Slice,
    build,
    layer_of,
    of_installed,
    patches,
    stack_of,
)

ROOT = Path(__file__).parents[2]
WORKSPACE = Workspace.open(ROOT)
SRT = "python/sglang/srt/"
TOP = "kvcr-tuning"
HOME = f"{SRT}mem_cache/storage/kvcr/"
TESTS = "test/registered/unit/mem_cache/storage/kvcr/"
HELPERS = "python/sglang/test/kvcr/"


def release() -> tuple[str, Path]:
    name, _, place = os.environ["RELEASED_SGLANG"].partition("=")
    return name, Path(place)


@pytest.fixture(scope="module")
def slices() -> list[Slice]:
    return stack_of(WORKSPACE.stacks, ROOT, TOP)[1]


@pytest.fixture(scope="module")
def branch(tmp_path_factory: pytest.TempPathFactory, slices: list[Slice]) -> Branch:
    upstream, _ = stack_of(WORKSPACE.stacks, ROOT, TOP)
    version, place = release()
    work = tmp_path_factory.mktemp("stack")
    return build(of_installed(place, upstream, version, Repository.make(work)), slices)


def test_kvcr_is_one_commit_of_new_files_of_its_own_and_small_edits(branch: Branch) -> None:
    commit = branch.commits[0]
    assert commit.slice.id == "kvcr"
    lines = branch.base.repository.run("diff", "--numstat", commit.parent, commit.commit)
    edited = 0
    for line in lines.splitlines():
        added, removed, file = line.split("\t")
        if not file.startswith((HOME, TESTS, HELPERS)):
            assert file.startswith(SRT), file
            assert removed == "0", file
            edited += int(added)
    assert 0 < edited < 100


def test_kvcr_tuning_is_new_files_and_one_edit_of_the_backend_below_it(branch: Branch) -> None:
    lower, upper = branch.commits
    assert upper.parent == lower.commit
    lines = branch.base.repository.run("diff", "--name-only", upper.parent, upper.commit)
    own = (f"{HOME}tuning/", f"{TESTS}tuning/")
    assert [file for file in lines.splitlines() if not file.startswith(own)] == [
        f"{HOME}extension.py"
    ]


def test_kvcr_tuning_does_not_apply_without_the_layer_below_it(
    branch: Branch, tmp_path: Path
) -> None:
    mails = patches.write(branch, tmp_path / "patches")
    bare = branch.base.repository.worktree(tmp_path / "bare", branch.base.commit)
    with pytest.raises(ExportError, match="apply the layers below it first") as error:
        patches.am(bare, mails[1])
    assert error.value.file == mails[1].name
    assert bare.is_clean()
    patches.am(bare, mails[0])
    patches.am(bare, mails[1])
    assert bare.tree("HEAD") == branch.commits[1].tree


def test_the_base_is_the_whole_release(branch: Branch) -> None:
    assert branch.base.repository.text(branch.base.commit, f"{SRT}managers/scheduler.py")
    listed = branch.base.repository.run("ls-tree", "-r", "--name-only", branch.base.commit)
    assert not [name for name in listed.splitlines() if name.endswith((".so", ".pyc"))]
    assert {target.rpartition(".")[2] for target, _ in branch.base.built} == {"so"}


def test_every_module_of_a_slice_is_exported_or_left_out_with_a_reason(
    slices: list[Slice],
) -> None:
    for each in slices:
        layer = each.layer
        modules = {path.name for path in (each.package / "src/kvstrata").glob("*/*.py")}
        exported = {
            Path(file.source).name for file in layer.files if file.source.startswith("src/")
        }
        left_out = {name for names in layer.left_out for name in names.split(", ")}
        assert exported | left_out == modules, each.id
        assert not exported & left_out, each.id


def test_every_test_of_a_slice_is_exported_checked_or_about_what_is_left_out(
    slices: list[Slice],
) -> None:
    for each in slices:
        layer = each.layer
        tests = {path.name for path in (each.package / "tests").glob("test_*.py")}
        taken = {Path(file.source).name for file in (*layer.files, *layer.helpers)}
        elsewhere = {name for names in layer.tested_elsewhere for name in names.split(", ")}
        assert (taken & tests) | elsewhere == tests, each.id
        assert not taken & elsewhere, each.id


def test_another_release_is_not_taken_for_the_base(tmp_path: Path) -> None:
    upstream, _ = stack_of(WORKSPACE.stacks, ROOT, "kvcr")
    _, place = release()
    with pytest.raises(ExportError, match=r"sglang 9.9 is not installed there"):
        of_installed(place, upstream, "9.9", Repository.make(tmp_path))


def test_a_slice_without_an_upstream_folder_is_refused() -> None:
    with pytest.raises(ExportError, match=r"packages/seams: seams: is not exported; fix: write"):
        stack_of(WORKSPACE.stacks, ROOT, "seams")


@pytest.mark.parametrize("text", ["", "LAYER = 1\n"])
def test_a_file_without_a_layer_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "upstream" / "layer.py"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ExportError, match=r"LAYER: is no Layer"):
        layer_of(file)
