# SPDX-License-Identifier: Apache-2.0
import shutil
from pathlib import Path

import pytest

from stackkit import StackError, Stacks, load

from .synthetic import STACK

HEAD = 'title = "A stack"\n'


def declare(slice_id: str, *requires: str) -> str:
    return STACK.format(id=slice_id, requires=", ".join(f'"{each}"' for each in requires))


def pinned(slice_id: str, version: str, *also: str, distribution: str = "sglang") -> str:
    text = ", ".join(f'"{each}"' for each in also)
    pin = f'{{ distribution = "{distribution}", version = "{version}", also = [{text}] }}'
    return declare(slice_id).replace("pins = []", f"pins = [{pin}]")


def load_files(folder: Path, **files: str) -> Stacks:
    stacks = folder / "stacks"
    stacks.mkdir()
    for name, text in files.items():
        (stacks / f"{name}.toml").write_text(HEAD + text, encoding="utf-8")
    return load(stacks)


def test_slices_come_in_topological_order_with_their_closures(tmp_path: Path) -> None:
    stacks = load_files(
        tmp_path,
        a=declare("top", "middle") + declare("middle", "bottom") + declare("bottom"),
    )

    assert list(stacks.slices) == ["bottom", "middle", "top"]
    assert [entry.id for entry in stacks.closure("middle")] == ["bottom", "middle"]
    assert [entry.id for entry in stacks.outsiders("middle")] == ["top"]


def test_a_stack_builds_on_a_slice_that_another_stack_declares(tmp_path: Path) -> None:
    stacks = load_files(
        tmp_path, a='shares = ["seams"]\n' + declare("pool", "seams"), b=declare("seams")
    )

    assert [entry.id for entry in stacks.closure("pool")] == ["seams", "pool"]


UPSTREAM = """
[[upstreams]]
id = "sglang"
repository = "https://example.invalid/sglang"
branch = "main"
release = "0.5.20"
"""
ON_THE_TREE = """
[[slices.gates]]
id = "kvcr-applied"
kind = "cpu"
session = "apply-kvcr"
required = true
min_tests = 1
"""


def test_a_gate_may_run_on_the_exported_tree_beside_the_one_on_the_wheels(tmp_path: Path) -> None:
    exported = declare("kvcr").replace("pins = []", 'pins = []\nupstream = "sglang"')
    stacks = load_files(tmp_path, a=UPSTREAM + exported + ON_THE_TREE)
    sessions = [gate.session for gate in stacks.slices["kvcr"].gates]
    assert sessions == ["validate-kvcr", "apply-kvcr"]


def test_a_slice_without_an_upstream_has_no_exported_tree(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"'apply-kvcr' for kind 'cpu', not 'validate-kvcr'"):
        load_files(tmp_path, a=declare("kvcr") + ON_THE_TREE)


def test_a_gate_on_the_exported_tree_alone_is_not_enough(tmp_path: Path) -> None:
    alone = declare("kvcr").replace("pins = []", 'pins = []\nupstream = "sglang"')
    alone = alone.replace('"validate-kvcr"', '"apply-kvcr"')
    with pytest.raises(StackError, match=r"no required gate of kind 'cpu'"):
        load_files(tmp_path, a=UPSTREAM + alone)


def test_a_slice_runs_on_every_release_of_the_host_that_it_pins(tmp_path: Path) -> None:
    stacks = load_files(
        tmp_path,
        a=declare("none")
        + pinned("both", "0.5.20", "0.5.21")
        + pinned("top", "0.5.20").replace("requires = []", 'requires = ["both", "none"]'),
    )

    assert {entry.id: entry.releases for entry in stacks.slices.values()} == {
        "none": (),
        "both": ("0.5.20", "0.5.21"),
        "top": ("0.5.20",),
    }
    assert stacks.releases == ("0.5.20", "0.5.21")


def test_distribution_module_and_session_follow_from_the_id(tmp_path: Path) -> None:
    entry = load_files(tmp_path, a=declare("packed-indexer")).slices["packed-indexer"]

    assert entry.distribution == "kvstrata-packed-indexer"
    assert entry.module == "kvstrata.packed_indexer"
    assert entry.validation == "validate-packed-indexer"


def test_the_format_says_everything_that_an_export_needs(tmp_path: Path) -> None:
    text = f"""
[[upstreams]]
id = "sglang"
repository = "https://example.org/sglang"
branch = "main"
release = "0.5.20"
base_commit = "{"a" * 40}"
base_tree = "{"b" * 40}"
{declare("kvcr")}
[[slices.gates]]
id = "kvcr-gpu"
kind = "gpu"
session = "validate-kvcr"
required = false
min_tests = 3

[[slices.gates]]
id = "kvcr-throughput"
kind = "bench"
session = "bench-kvcr"
required = false
min_tests = 1

[slices.pull_request]
title = "[HiCache] Restore prefixes from peers"
template = "sglang"
status = "planned"
"""
    text = text.replace("pins = []", 'pins = []\nupstream = "sglang"')

    stacks = load_files(tmp_path, a=text)

    entry = stacks.slices["kvcr"]
    assert entry.pull_request is not None
    assert entry.pull_request.status == "planned"
    assert [gate.kind for gate in entry.gates] == ["cpu", "gpu", "bench"]
    assert stacks.stacks["a"].upstreams[0].base_tree == "b" * 40


COMBINATION = """
combines = ["a", "b"]

[[gates]]
id = "both-cpu"
kind = "cpu"
session = "validate-both"
required = true
min_tests = 1
"""


def test_a_combination_has_every_slice_of_its_stacks_and_what_they_share(tmp_path: Path) -> None:
    stacks = load_files(
        tmp_path,
        a='shares = ["seams"]\n' + declare("pool", "seams"),
        b=declare("seams") + declare("store", "seams"),
        both=COMBINATION,
        c=declare("other"),
    )

    (both,) = stacks.combinations.values()
    assert {entry.id for entry in both.slices} == {"seams", "pool", "store"}
    assert both.slices[0].id == "seams"
    assert both.slices == stacks.closure("both")
    assert [entry.id for entry in stacks.outsiders("both")] == ["other"]
    assert (both.validation, both.gates[0].session) == ("validate-both", "validate-both")


def test_a_combination_runs_on_the_releases_that_all_of_its_slices_support(tmp_path: Path) -> None:
    stacks = load_files(
        tmp_path,
        a=pinned("pool", "0.5.20", "0.5.22") + declare("plain"),
        b=pinned("store", "0.5.20", "0.5.21", "0.5.22"),
        both=COMBINATION,
    )

    assert stacks.combinations["both"].releases == ("0.5.20", "0.5.22")
    assert stacks.pinned("both") == {"sglang"}


GOOD = declare("kvcr")


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        pytest.param(declare("kvcr", "seam"), "slices[0].requires", "'seam'", id="unknown slice"),
        pytest.param(declare("a", "b") + declare("b", "a"), "requires", "cycle", id="cycle"),
        pytest.param(declare("a", "a"), "slices[0].requires", "cycle a -> a", id="cycle of one"),
        pytest.param(GOOD + GOOD, "slices[1].id", "already declared", id="declared twice"),
        pytest.param(
            GOOD.replace("pins = []\n", ""), "slices[0]", "missing required field `pins`", id="pins"
        ),
        pytest.param(
            GOOD.replace("min_tests = 1", ""), "slices[0].gates[0]", "`min_tests`", id="min_tests"
        ),
        pytest.param(
            GOOD.replace("min_tests = 1", "min_tests = 0"),
            "slices[0].gates[0].min_tests",
            ">= 1",
            id="a gate that zero tests would pass",
        ),
        pytest.param(
            GOOD.replace("min_tests = 1", 'min_tests = "1"'),
            "slices[0].gates[0].min_tests",
            "Expected `int`, got `str`",
            id="wrong type",
        ),
        pytest.param(
            GOOD.replace("pins = []", "pin = []\npins = []"), "slices[0]", "`pin`", id="unknown key"
        ),
        pytest.param(
            GOOD.replace("pins = []", 'pins = []\nupstream = "vllm"'),
            "slices[0].upstream",
            "'vllm'",
            id="unknown upstream",
        ),
        pytest.param(
            GOOD.replace("pins = []", 'pins = [{ distribution = "x", version = "new" }]'),
            "slices[0].pins[0].version",
            "'new'",
            id="pin without a version",
        ),
        pytest.param(
            pinned("kvcr", "0.5.20", "next"), "slices[0].pins[0].also", "'next'", id="no release"
        ),
        pytest.param(
            pinned("kvcr", "0.5.20", "0.5.20"),
            "slices[0].pins[0].also",
            "'0.5.20' is listed 2 times",
            id="a release twice",
        ),
        pytest.param(
            pinned("kvcr", "0.1.1", "0.1.2", distribution="kvcr"),
            "slices[0].pins[0].also",
            "only 'sglang'",
            id="several versions of what is in the base alone",
        ),
        pytest.param(
            pinned("a", "0.5.20")
            + pinned("b", "0.5.20", "0.5.21").replace("requires = []", 'requires = ["a"]'),
            "slices[1].pins",
            "sglang 0.5.21 is not supported by 'a': '0.5.20'",
            id="a release that a predecessor does not support",
        ),
        pytest.param(
            GOOD.replace('kind = "cpu"', 'kind = "gpu"'), "slices[0].gates", "'cpu'", id="no cpu"
        ),
        pytest.param(
            GOOD.replace('"validate-kvcr"', '"validate-seams"'),
            "slices[0].gates[0].session",
            "'validate-kvcr'",
            id="gate in the session of another slice",
        ),
        pytest.param('shares = ["x"]' + GOOD, "shares", "'x'", id="shared but declared nowhere"),
        pytest.param(
            GOOD + COMBINATION.partition("\n\n")[2],
            "gates",
            "only a stack that combines others",
            id="gates of a stack that has slices",
        ),
        pytest.param("slices = [", "syntax", "", id="no TOML"),
        pytest.param("", "*.toml", "no stack file declares a slice", id="nothing declared"),
    ],
)
def test_a_fault_is_one_line_with_file_and_key(
    tmp_path: Path, text: str, key: str, reason: str
) -> None:
    with pytest.raises(StackError) as raised:
        load_files(tmp_path, broken=text)

    message = str(raised.value)
    assert "\n" not in message
    assert raised.value.file.startswith("stacks")
    assert key in raised.value.key
    assert reason in raised.value.reason
    assert message == f"{raised.value.file}: {raised.value.key}: {raised.value.reason}"


def test_a_slice_declared_in_two_files_names_both(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"^stacks/b\.toml: slices\[0\]\.id: .*a\.toml"):
        load_files(tmp_path, a=declare("seams"), b=declare("seams"))


def test_a_slice_of_another_stack_must_be_shared_to_be_required(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="unknown slice 'seams'"):
        load_files(tmp_path, a=declare("seams"), b=declare("pool", "seams"))


@pytest.mark.parametrize(
    ("file", "old", "new", "key", "reason"),
    [
        pytest.param(
            "both",
            '"b"]',
            '"c"]',
            "combines",
            "no stack 'c' with slices; there are 'a', 'b'",
            id="unknown stack",
        ),
        pytest.param(
            "both", '"b"]', '"both"]', "combines", "no stack 'both' with slices", id="own"
        ),
        pytest.param("both", '"b"]', '"b", "a"]', "combines", "'a' is listed 2 times", id="twice"),
        pytest.param("both", ', "b"]', "]", "combines", "name at least two", id="one stack"),
        pytest.param(
            "both", '"b"]', '"b"]\nshares = ["pool"]', "shares", "only `gates`", id="shares"
        ),
        pytest.param("both", '"cpu"', '"gpu"', "gates", "'cpu'", id="no cpu gate"),
        pytest.param(
            "both",
            '"validate-both"',
            '"validate-pool"',
            "gates[0].session",
            "not 'validate-both'",
            id="gate in the session of a slice",
        ),
        pytest.param(
            "b", "store", "both", "combines", "a slice has the session", id="name of a slice"
        ),
        pytest.param(
            "b",
            '"0.5.20"',
            '"0.5.21"',
            "combines",
            "no release of sglang is supported by every slice; pool: 0.5.20; store: 0.5.21",
            id="no common release",
        ),
    ],
)
def test_a_fault_of_a_combination_is_one_line_with_file_and_key(
    tmp_path: Path, file: str, old: str, new: str, key: str, reason: str
) -> None:
    files = {"a": pinned("pool", "0.5.20"), "b": pinned("store", "0.5.20"), "both": COMBINATION}
    load_files(tmp_path, **files)
    shutil.rmtree(tmp_path / "stacks")
    assert old in files[file]

    with pytest.raises(StackError) as raised:
        load_files(tmp_path, **files | {file: files[file].replace(old, new)})

    assert raised.value.file == "stacks/both.toml"
    assert raised.value.key == key
    assert reason in raised.value.reason
    assert "\n" not in str(raised.value)
