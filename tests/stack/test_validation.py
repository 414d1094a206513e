# SPDX-License-Identifier: Apache-2.0
"""Two small slices, `bottom` and `top`, are built and validated as real ones are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from stackkit import (
    Environment,
    GateResult,
    Run,
    StaleWheelError,
    ValidationError,
    disagreements,
    gather,
    table,
    validate_combination,
)
from stackkit.results import joined

from .synthetic import GPU_GATE, PASSING, STACK, Checkout, write

FAILING = """
import pytest

@pytest.fixture
def broken():
    1 / 0

def test_errors(broken):
    pass

def test_fails():
    assert False

def test_passes():
    assert True
"""
COMBINATION = """
combines = ["first", "second"]

[[gates]]
id = "both-cpu"
kind = "cpu"
session = "validate-both"
required = true
min_tests = 1
"""
GPU_TEST = """
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(True, reason="no device")]

def test_on_it():
    assert pytestmark
"""
SHARED_TEST = """
import os

def test_on_a_process_of_its_own():
    assert os.environ["PYTEST_XDIST_WORKER_COUNT"] == "2"
"""
CPU_GATE = """
id = "bottom-cpu"
kind = "cpu"
session = "validate-bottom"
required = true
min_tests = 1
"""


def test_a_slice_is_tested_from_the_wheels_of_its_closure(checkout: Checkout) -> None:
    result = checkout.validate("top")

    assert result.succeeded
    assert [(gate.gate, gate.passed, gate.failed) for gate in result.gates] == [("top-cpu", 1, 0)]
    assert set(result.packages) == {"kvstrata-ci-host", "kvstrata-bottom", "kvstrata-top"}


def test_all_slices_of_a_combination_are_tested_in_one_environment(checkout: Checkout) -> None:
    (checkout.root / "stacks" / "synthetic.toml").unlink()
    title = 'title = "Synthetic"\n'
    shared = title + 'shares = ["bottom"]\n'
    checkout.write("stacks/first.toml", title + STACK.format(id="bottom", requires=""))
    checkout.write("stacks/second.toml", shared + STACK.format(id="top", requires='"bottom"'))
    checkout.write("stacks/both.toml", title + COMBINATION)
    test = "import kvstrata.bottom, kvstrata.top\n\ndef test_it():\n    pass\n"
    checkout.write("tests/both/test_it.py", test)

    result = validate_combination(checkout.workspace, "both", checkout.layer)

    assert result.succeeded
    assert result.session == "validate-both"
    assert [(gate.gate, gate.passed) for gate in result.gates] == [("both-cpu", 1)]
    assert set(result.packages) == {"kvstrata-ci-host", "kvstrata-bottom", "kvstrata-top"}
    checkout.write("stacks/second.toml", shared + STACK.format(id="middle", requires='"bottom"'))
    shutil.move(checkout.root / "packages" / "top", checkout.root / "packages" / "middle")
    checkout.edit("packages/middle/pyproject.toml", "kvstrata-top", "kvstrata-middle")
    with pytest.raises(StaleWheelError, match="kvstrata-middle: no wheel"):
        validate_combination(checkout.workspace, "both", checkout.layer)


def test_a_wheel_is_the_same_bytes_in_every_build_and_holds_no_tests(checkout: Checkout) -> None:
    first, second = checkout.build("bottom")[0], checkout.build("bottom")[0]

    assert first.sha256 == second.sha256
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", second.path], capture_output=True, check=True
    ).stdout
    assert b"kvstrata/bottom/__init__.py" in listed
    assert b"test_it" not in listed


def test_a_file_that_git_ignores_reaches_no_wheel(checkout: Checkout) -> None:
    (clean,) = checkout.build("bottom")
    checkout.write("packages/bottom/src/kvstrata/bottom/build/leftover.py", "")

    assert checkout.build("bottom")[0].sha256 == clean.sha256


def test_zero_tests_fail(checkout: Checkout) -> None:
    checkout.write("packages/bottom/tests/test_it.py", "def check_nothing():\n    pass\n")
    checkout.build("bottom")

    result = checkout.validate("bottom")

    assert not result.succeeded
    assert result.gates[0].reason == "0 tests ran, 1 must"


def test_skipped_tests_do_not_count_and_keep_their_reason(checkout: Checkout) -> None:
    skipping = "import pytest\n\ndef test_it():\n    pytest.skip('no device')\n"
    checkout.write("packages/bottom/tests/test_it.py", skipping)
    checkout.build("bottom")

    result = checkout.validate("bottom")

    assert not result.succeeded
    assert [skip.reason for skip in result.gates[0].skipped] == ["no device"]


def test_failures_errors_and_what_cannot_be_collected_fail(checkout: Checkout) -> None:
    checkout.write("packages/bottom/tests/test_it.py", FAILING)
    checkout.build("bottom")
    ran = checkout.validate("bottom")
    checkout.write("packages/bottom/tests/test_it.py", "import absent\n")
    checkout.build("bottom")
    collected = checkout.validate("bottom")

    assert not ran.succeeded
    assert (ran.gates[0].passed, ran.gates[0].failed) == (1, 2)
    assert not collected.succeeded


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the driver's tool prints on this machine, in place of the real one."""
    listed = tmp_path / "devices"
    write(tmp_path / "bin" / "nvidia-smi", f"#!/bin/sh\ncat '{listed}'\n")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return listed


def test_the_gpu_tests_are_skipped_and_their_gate_not_run_where_there_is_no_device(
    checkout: Checkout, devices: Path
) -> None:
    devices.write_text("", encoding="utf-8")
    checkout.edit("stacks/synthetic.toml", CPU_GATE, CPU_GATE + GPU_GATE)
    checkout.write("packages/bottom/tests/test_gpu.py", GPU_TEST)
    checkout.build("bottom")

    result = checkout.validate("bottom")

    assert result.succeeded
    assert [gate.result for gate in result.gates] == ["pass", "not_run"]
    assert [skip.reason for skip in result.gates[0].skipped] == ["no device"]
    assert result.gates[1].reason == "no CUDA device"


def test_the_gpu_tests_run_in_their_own_gate_where_there_is_a_device(
    checkout: Checkout, devices: Path
) -> None:
    devices.write_text("A device\n", encoding="utf-8")
    checkout.edit("stacks/synthetic.toml", CPU_GATE, CPU_GATE + GPU_GATE)

    without = checkout.validate("bottom")
    checkout.write("packages/bottom/tests/test_gpu.py", GPU_TEST.replace("True", "False"))
    checkout.build("bottom")
    result = checkout.validate("bottom")

    assert [gate.result for gate in without.gates] == ["pass", "not_run"]
    assert without.gates[1].reason == "0 tests ran, 1 must"
    assert [(gate.passed, len(gate.skipped)) for gate in result.gates] == [(1, 0), (1, 0)]


def test_the_processes_of_a_gate_share_its_files(checkout: Checkout) -> None:
    checkout.edit("stacks/synthetic.toml", CPU_GATE, CPU_GATE + "processes = 2\n")
    checkout.write("packages/bottom/tests/test_shared.py", SHARED_TEST)
    checkout.build("bottom")

    (gate,) = checkout.validate("bottom").gates

    assert (gate.result, gate.passed) == ("pass", 2)


@pytest.mark.parametrize(
    "file", ["src/kvstrata/bottom/__init__.py", "tests/test_it.py", "src/kvstrata/bottom/new.py"]
)
def test_a_wheel_of_other_files_is_refused(checkout: Checkout, file: str) -> None:
    checkout.write(f"packages/bottom/{file}", "# changed\n")

    with pytest.raises(StaleWheelError, match=r"changed since .*run `nox -s build-bottom`"):
        checkout.validate("top")


def test_a_wheel_that_was_replaced_is_refused(checkout: Checkout) -> None:
    checkout.build("bottom")[0].path.write_bytes(b"other")

    with pytest.raises(StaleWheelError, match="changed since its build"):
        checkout.validate("bottom")


def test_a_wheel_that_was_never_built_is_refused(checkout: Checkout) -> None:
    shutil.rmtree(checkout.root / "build" / "wheels" / "bottom")

    with pytest.raises(StaleWheelError, match="kvstrata-bottom: no wheel"):
        checkout.validate("top")


def test_a_slice_over_one_that_pins_kvcached_is_tested_with_its_host_build(
    checkout: Checkout,
) -> None:
    pin = 'pins = [{ distribution = "kvcached", version = "1.2" }]'
    stack = "stacks/synthetic.toml"
    before, after = (checkout.root / stack).read_text(encoding="utf-8").split('id = "bottom"')
    checkout.write(stack, before + 'id = "bottom"' + after.replace("pins = []", pin))
    assert checkout.workspace.stacks.pinned("top") == {"kvcached"}

    with pytest.raises(StaleWheelError, match=r"kvcached: no wheel .*nox -s build-kvcached-host"):
        checkout.validate("top")


def test_an_importable_successor_is_refused(checkout: Checkout) -> None:
    checkout.validate("top")

    with pytest.raises(ValidationError, match=r"kvstrata\.top is no predecessor, yet importable"):
        checkout.validate("bottom")


def test_a_slice_that_comes_from_elsewhere_is_refused(checkout: Checkout) -> None:
    source = checkout.root / "packages" / "bottom" / "src"
    shadow = checkout.layer.environment.site_packages / "_first.pth"
    shadow.write_text(f"import sys; sys.path.insert(0, {str(source)!r})\n", encoding="utf-8")

    with pytest.raises(ValidationError, match=r"kvstrata\.bottom comes from .*src"):
        checkout.validate("bottom")


def test_an_unmet_requirement_of_a_slice_is_refused(checkout: Checkout) -> None:
    checkout.edit(
        "packages/bottom/pyproject.toml", "dependencies = []", 'dependencies = ["absent-thing"]'
    )
    checkout.build("bottom")

    with pytest.raises(
        ValidationError, match=r"pip check: kvstrata-bottom 0\.1\.0 requires absent"
    ):
        checkout.validate("bottom")


def over_release(checkout: Checkout, release: str, *versions: str) -> Checkout:
    """The checkout with a layer over hosts of these versions, the first one in front."""
    bases = []
    for version in versions:
        base = Environment(checkout.root.parent / f"sglang-{version}")
        write(base.site_packages / "sglang" / "__init__.py", f"VERSION = {version!r}\n")
        metadata = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n"
        write(base.site_packages / f"sglang-{version}.dist-info" / "METADATA", metadata)
        bases.append(base)
    layer = replace(checkout.layer, bases=(*bases, *checkout.layer.bases), release=release)
    return replace(checkout, layer=layer)


def test_a_release_is_what_the_tests_and_pip_see_wherever_it_differs_from_the_base(
    checkout: Checkout,
) -> None:
    checkout.edit(
        "packages/bottom/pyproject.toml", "dependencies = []", 'dependencies = ["sglang>1"]'
    )
    sees = "import sglang\n\ndef test_it():\n    assert sglang.VERSION == '2'\n"
    checkout.write("packages/bottom/tests/test_it.py", sees)
    checkout.build("bottom")

    result = over_release(checkout, "2", "2", "1").validate("bottom")

    assert result.succeeded
    assert result.release == "2"
    with pytest.raises(ValidationError, match=r"pip check: kvstrata-bottom .* sglang"):
        over_release(checkout, "1", "1").validate("bottom")


@pytest.mark.parametrize(
    ("versions", "found"),
    [(("1", "2"), "sglang 1 is imported"), ((), "sglang None is imported from None")],
    ids=["another release", "none"],
)
def test_a_layer_that_does_not_give_its_release_is_refused(
    checkout: Checkout, versions: tuple[str, ...], found: str
) -> None:
    with pytest.raises(ValidationError, match=rf"{found}.*, not 2 from "):
        over_release(checkout, "2", *versions).validate("bottom")


def test_a_host_that_is_not_from_the_releases_own_environment_is_refused(
    checkout: Checkout,
) -> None:
    release = over_release(checkout, "2", "2")
    elsewhere = replace(release.layer, bases=release.layer.bases[::-1])

    with pytest.raises(ValidationError, match=r"sglang 2 is imported from .*, not 2 from "):
        replace(release, layer=elsewhere).validate("bottom")


def test_every_release_has_a_result_of_its_own_and_one_that_did_not_run_is_a_failure(
    checkout: Checkout,
) -> None:
    runs = [Run("validate-bottom", release) for release in ("1", "2", "3")]
    over_release(checkout, "1", "1").validate("bottom")
    checkout.write("packages/bottom/tests/test_it.py", FAILING)
    checkout.build("bottom")
    over_release(checkout, "2", "2", "1").validate("bottom")
    stale, failed, absent = gather(checkout.workspace, runs)
    checkout.write("packages/bottom/tests/test_it.py", PASSING.format(module="kvstrata.bottom"))
    passed = gather(checkout.workspace, runs)[0]

    assert [result.release for result in (stale, failed, absent)] == ["1", "2", "3"]
    assert [bool(result.gates) for result in (stale, failed, absent)] == [False, True, False]
    assert not any(result.succeeded for result in (stale, failed, absent))
    assert passed.succeeded
    rows = [line.split() for line in table([passed, failed, absent]).splitlines()]
    assert rows[1] == ["validate-bottom", "1", "bottom-cpu", "1", "0", "0", "pass"]
    assert rows[2] == ["validate-bottom", "2", "bottom-cpu", "1", "2", "0", "fail"]
    assert rows[3][:4] == ["validate-bottom", "3", "not", "run"]


def test_the_summary_takes_no_result_of_other_files(checkout: Checkout) -> None:
    checkout.validate("bottom")
    before = gather(checkout.workspace, [Run("validate-bottom"), Run("validate-top")])
    checkout.write("packages/bottom/src/kvstrata/bottom/__init__.py", "CHANGED = True\n")
    after = gather(checkout.workspace, [Run("validate-bottom")])

    assert [result.succeeded for result in before] == [True, False]
    assert [result.succeeded for result in after] == [False]


def test_a_range_of_releases_is_what_the_package_requires(checkout: Checkout) -> None:
    pin = '{ distribution = "sglang", version = "0.5.20", also = ["0.5.19", "0.5.21"] }'
    for slice_id in ("top", "bottom"):
        checkout.edit(
            f"packages/{slice_id}/pyproject.toml",
            "[tool.hatch",
            '[project.optional-dependencies]\nsglang = ["sglang>=0.5.19,<=0.5.21"]\n\n[tool.hatch',
        )
    checkout.edit("stacks/synthetic.toml", "pins = []", f"pins = [{pin}]")
    assert disagreements(checkout.workspace.stacks, checkout.root) == []

    checkout.edit("stacks/synthetic.toml", ', "0.5.21"]', "]")

    assert set(disagreements(checkout.workspace.stacks, checkout.root)) == {
        f"packages/{slice_id}/pyproject.toml: project: {complaint}"
        for slice_id in ("top", "bottom")
        for complaint in (
            "no requirement 'sglang<=0.5.20,>=0.5.19', the stack pins it",
            "'sglang<=0.5.21,>=0.5.19' is not among `pins` in the stack",
        )
    }


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        pytest.param(
            "packages/top/pyproject.toml",
            '"kvstrata-bottom>=0.1,<0.2"',
            "",
            "'kvstrata-bottom' is missing",
            id="the package lacks a requirement",
        ),
        pytest.param(
            "stacks/synthetic.toml",
            'requires = ["bottom"]',
            "requires = []",
            "'kvstrata-bottom' is not among `requires`",
            id="the stack lacks a requirement",
        ),
        pytest.param(
            "packages/top/pyproject.toml", ">=0.1,<0.2", "==0.1.0", "pins a sibling", id="pinned"
        ),
        pytest.param(
            "packages/top/pyproject.toml", ">=0.1,<0.2", ">=0.2", "leaves out 0.1.0", id="range"
        ),
        pytest.param(
            "packages/top/pyproject.toml",
            '"kvstrata-bottom',
            '"kvcr==0.1.1", "kvstrata-bottom',
            "'kvcr==0.1.1' is not among `pins`",
            id="the stack lacks a pin",
        ),
        pytest.param(
            "stacks/synthetic.toml",
            "pins = []",
            'pins = [{ distribution = "kvcr", version = "0.1.1" }]',
            "no requirement 'kvcr==0.1.1'",
            id="the package lacks a pin",
        ),
    ],
)
def test_a_stack_and_a_package_that_disagree_are_told_apart(
    checkout: Checkout, file: str, old: str, new: str, complaint: str
) -> None:
    assert disagreements(checkout.workspace.stacks, checkout.root) == []
    checkout.edit(file, old, new)

    lines = disagreements(checkout.workspace.stacks, checkout.root)

    assert any(complaint in line for line in lines)
    assert all(line.startswith("packages/") for line in lines)


def test_a_gate_whose_tests_ran_in_two_processes_fails_if_one_of_them_did() -> None:
    passed = GateResult(
        gate="bottom-cpu",
        kind="cpu",
        required=True,
        min_tests=1,
        passed=2,
        failed=0,
        skipped=(),
        seconds=1.0,
        result="pass",
    )
    failed = msgspec.structs.replace(passed, failed=1, result="fail", reason="1 failed")

    assert joined(passed, passed).result == "pass"
    for both in (joined(passed, failed), joined(failed, passed)):
        assert (both.passed, both.failed, both.seconds) == (4, 1, 2.0)
        assert (both.result, both.reason) == ("fail", "1 failed")
