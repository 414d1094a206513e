# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import pytest

from stackkit import Slice, Stack, Stacks, contracts


def stacks_of(**requires: tuple[str, ...]) -> Stacks:
    slices = {
        slice_id: Slice(id=slice_id, package=slice_id, requires=needed, pins=(), gates=())
        for slice_id, needed in requires.items()
    }
    return Stacks({"a": Stack(title="A stack", slices=tuple(slices.values()))}, slices)


@pytest.mark.parametrize(
    ("module", "line", "kept"),
    [
        pytest.param("middle", "import kvstrata.bottom", True, id="a required slice"),
        pytest.param("bottom", "import kvstrata.middle", False, id="a successor"),
        pytest.param("top", "import kvstrata.bottom", False, id="a predecessor not required"),
        pytest.param(
            "bottom",
            "try:\n    import kvstrata.middle\nexcept ImportError:\n    pass",
            False,
            id="a successor behind a try",
        ),
        pytest.param("bottom", "import tool", False, id="a test tool"),
    ],
)
def test_a_slice_imports_only_what_it_requires(
    tmp_path: Path, module: str, line: str, kept: bool
) -> None:
    for name in ("bottom", "middle", "top"):
        package = tmp_path / name / "kvstrata" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(line if name == module else "", encoding="utf-8")
    (tmp_path / "tools" / "tool").mkdir(parents=True)
    (tmp_path / "tools" / "tool" / "__init__.py").touch()
    stacks = stacks_of(bottom=(), middle=("bottom",), top=("middle",))
    contracts.write(stacks, tmp_path / "contracts.ini", tools=("tool",))

    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "contracts.ini", "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": "bottom:middle:top:tools"},
        check=False,
        capture_output=True,
        text=True,
    )

    assert (done.returncode == 0) is kept, done.stdout + done.stderr
    assert f"kvstrata.{module} imports only" in done.stdout
