# SPDX-License-Identifier: Apache-2.0
"""torchvision imports, in this and in spawned processes, and nobody else pays for it."""

import subprocess
import sys

import pytest


def run(script: str) -> str:
    """Standard output of a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.strip()


def test_every_interpreter_starts_with_the_finder_in_place_once() -> None:
    script = "import sys; print([type(f).__name__ for f in sys.meta_path].count('SchemaFinder'))"
    assert run(script) == "1"


def test_a_plain_interpreter_imports_neither_torch_nor_torchvision() -> None:
    assert run("import sys; print('torch' in sys.modules, 'torchvision' in sys.modules)") == (
        "False False"
    )


@pytest.mark.integration
@pytest.mark.timeout(150)
def test_torchvision_imports_with_its_operators_declared_once() -> None:
    script = (
        "import sys, torchvision, torch;"
        "from kvstrata_host.torchvision_ops import SchemaFinder, declare_missing_operators;"
        "print(hasattr(torch.ops.torchvision, 'nms'), hasattr(torch.ops.torchvision, 'qnms'),"
        " declare_missing_operators(), any(isinstance(f, SchemaFinder) for f in sys.meta_path))"
    )
    assert run(script) == "True True () False"


def test_without_torchvision_its_import_fails_as_always() -> None:
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torchvision': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "try:\n    import torchvision\n"
        "except ModuleNotFoundError: print('absent', 'torch' in sys.modules)"
    )
    assert run(script) == "absent False"
