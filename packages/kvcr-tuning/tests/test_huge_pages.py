# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest

from kvstrata.kvcr import ConfigError
from kvstrata.kvcr.extension import ENABLEMENT, Extension
from kvstrata.kvcr_tuning.huge_pages import HugePages

TIER_BYTES = 32 << 20


def huge_bytes(address: int) -> int:
    """How much of a mapping is on huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        field, *rest = line.split()
        if "-" in field and len(rest) >= 4:
            first, last = (int(each, 16) for each in field.split("-"))
            inside = first <= address < last
        elif inside and field == "AnonHugePages:":
            return int(rest[0]) << 10
    raise AssertionError(f"no mapping holds {address:#x}")


def allocated(ways: Extension) -> int:
    memory = np.frombuffer(ways.allocate(TIER_BYTES), dtype=np.uint8)
    memory[::4096] = 0
    return huge_bytes(int(memory.ctypes.data))


def mode(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "enabled"
    file.write_text(text)
    return file


def test_the_tier_is_on_huge_pages_and_by_default_is_not() -> None:
    system = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not system.is_file() or "[never]" in system.read_text():
        pytest.skip("this kernel gives no transparent huge pages")
    assert allocated(HugePages(ENABLEMENT)) > 0
    assert allocated(ENABLEMENT) == 0


@pytest.mark.parametrize("text", ["always madvise [never]\n", None])
def test_a_kernel_without_huge_pages_is_refused_at_start(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "absent" if text is None else mode(tmp_path, text)
    with pytest.raises(ConfigError, match=r"unset tuning\.huge_pages") as error:
        HugePages(ENABLEMENT, file)
    assert error.value.setting == "tuning.huge_pages"


@pytest.mark.parametrize("text", ["always [madvise] never\n", "[always] madvise never\n"])
def test_a_kernel_with_huge_pages_is_taken(tmp_path: Path, text: str) -> None:
    HugePages(ENABLEMENT, mode(tmp_path, text))
