# SPDX-License-Identifier: Apache-2.0
"""The wheel: what it calls itself, what it needs, and that it stays out of the way."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

pytestmark = pytest.mark.integration


def run(script: str, **variables: str) -> str:
    """Standard output of a fresh interpreter with only these of kvcached's variables."""
    own = ("ENABLE_KVCACHED", "KVCACHED_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**kept, "KVCACHED_LOG_LEVEL": "ERROR", **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout.strip()


def test_its_version_says_that_it_is_the_host_build_and_satisfies_the_pin() -> None:
    assert version("kvcached") == "0.1.6+host"
    assert SpecifierSet("==0.1.6").contains(version("kvcached"))


def test_it_needs_three_distributions_and_they_are_here() -> None:
    needed = [Requirement(text) for text in requires("kvcached") or ()]
    always = {each.name: each.specifier for each in needed if each.marker is None}
    assert sorted(always) == ["numpy", "posix_ipc", "wrapt"]
    assert all(specifier.contains(version(name)) for name, specifier in always.items())


def test_an_interpreter_starts_without_torch_and_without_kvcached() -> None:
    assert run("import sys; print([m in sys.modules for m in ('torch', 'kvcached')])") == (
        "[False, False]"
    )


def test_a_device_that_is_no_host_is_refused() -> None:
    script = (
        "from kvcached import vmm_ops\n"
        "try: vmm_ops.init_kvcached('cuda:0')\n"
        "except ValueError as error: print(error)"
    )
    assert run(script) == 'kvcached+host maps host memory: device "cuda:0" must be "cpu"'


def test_the_contiguous_layout_maps_all_layers_of_a_page_as_one() -> None:
    script = (
        "from kvcached import vmm_ops; from kvstrata_host import vmm; page = 2 << 20\n"
        "vmm_ops.init_kvcached('cpu', page, True)\n"
        "tensors = vmm_ops.create_kv_tensors(8 * page, 1, 'cpu', 3, 1, 0, True)\n"
        "before = vmm.state()\n"
        "vmm_ops.map_to_kv_tensors([3 * page], 0)\n"
        "after = vmm.state()\n"
        "print([t.numel() // page for t in tensors], after.allocations - before.allocations,"
        " (after.created_bytes - before.created_bytes) // page)"
    )
    assert run(script) == "[24] 1 3"


PATCHED = """
import sglang
from sglang.srt.mem_cache import memory_pool
print([cls.__name__ for cls in memory_pool.MHATokenToKVPool.__mro__[:2]])
"""


@pytest.mark.timeout(250)
@pytest.mark.parametrize("switch", [None, "false"])
def test_sglang_keeps_its_pools_unless_kvcached_is_switched_on(switch: str | None) -> None:
    variables = {} if switch is None else {"ENABLE_KVCACHED": switch}
    assert "Elastic" not in run(PATCHED, **variables)


@pytest.mark.timeout(250)
def test_switched_on_it_patches_sglang() -> None:
    assert "Elastic" in run(PATCHED, ENABLE_KVCACHED="1")
