# SPDX-License-Identifier: Apache-2.0
"""The build of kvcached for a host: its C++, its label, and when it is made again."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from stackkit import Environment, KvcachedHost, RelabelError, StaleWheelError, WheelError, relabel

SOURCES = Path(__file__).parents[2] / "ci" / "host" / "kvcached_host"
COMPILE = ("g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "kvcached"
version = "1.2"

[tool.hatch.build.targets.wheel]
packages = ["kvcached"]
"""


def compiles(text: str) -> bool:
    command = [*COMPILE, "-I", str(SOURCES / "include"), "-x", "c++", "-"]
    done = subprocess.run(command, input=text, text=True, check=False, capture_output=True)
    return done.returncode == 0


@pytest.mark.parametrize("header", ["cuda.h", "cuda_runtime.h", "vmm_control.h"])
def test_each_header_compiles_alone_without_a_warning(header: str) -> None:
    assert compiles(f"#include <{header}>\n")
    assert not compiles(f"#include <{header}>\nint with_a_warning(int unused) {{ return 0; }}\n")


def test_the_driver_compiles_without_a_warning() -> None:
    driver = (SOURCES / "vmm.cpp").read_text(encoding="utf-8")
    assert compiles(driver)
    assert not compiles(driver + "\nint with_a_warning(int unused) { return 0; }\n")


def wheel_of(folder: Path, *, metadata: str = "Name: kvcached\nVersion: 1.2\n") -> Path:
    path = folder / "kvcached-1.2-py3-none-any.whl"
    info = "kvcached-1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("kvcached/__init__.py", "answer = 42\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.4\n{metadata}\nA text.\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "kvcached/__init__.py,,\n")
    return path


def test_a_labelled_wheel_installs_under_its_new_version(tmp_path: Path) -> None:
    labelled = relabel(wheel_of(tmp_path), "host", tmp_path)
    assert labelled.name == "kvcached-1.2+host-py3-none-any.whl"

    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(labelled)], check=True, capture_output=True)
    script = (
        "import kvcached, importlib.metadata as m; print(kvcached.answer, m.version('kvcached'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(target)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "42 1.2+host\n"
    with zipfile.ZipFile(labelled) as archive:
        record = archive.read("kvcached-1.2+host.dist-info/RECORD").decode().splitlines()
    assert [line.split(",")[0] for line in record] == [
        "kvcached-1.2+host.dist-info/METADATA",
        "kvcached-1.2+host.dist-info/WHEEL",
        "kvcached/__init__.py",
        "kvcached-1.2+host.dist-info/RECORD",
    ]


def test_a_wheel_without_its_version_gets_no_label(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, metadata="Name: kvcached\nVersion: 1.3\n")
    with pytest.raises(RelabelError, match=r"does not say Version: 1\.2"):
        relabel(wheel, "host", tmp_path)


class Checkout:
    """Sources of a distribution of the same name, in Python alone, and their stand-ins."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        sources = root / "sources"
        for folder in ("include", "build_hooks"):
            (sources / folder).mkdir(parents=True)
        (sources / "include" / "cuda.h").write_text("int answer();\n", encoding="utf-8")
        self.driver = sources / "vmm.cpp"
        self.driver.write_text("#include <cuda.h>\nint answer() { return 42; }\n", encoding="utf-8")
        self.archive = root / "kvcached-1.2.tar.gz"
        files = {"pyproject.toml": PYPROJECT, "kvcached/__init__.py": "answer = 42\n"}
        files["PKG-INFO"] = "Metadata-Version: 2.4\nName: kvcached\nVersion: 1.2\n"
        with tarfile.open(self.archive, "w:gz") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(f"kvcached-1.2/{name}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        self.kvcached = KvcachedHost(sources, root / "lock.txt", root / "wheels")
        self.lock(hashlib.sha256(self.archive.read_bytes()).hexdigest())
        # The stamp of an environment that a recipe made.
        self.base = Environment(Path(sys.prefix))

    def lock(self, sha256: str) -> None:
        line = f"kvcached @ {self.archive.as_uri()} --hash=sha256:{sha256}\n"
        self.kvcached.lock.write_text(line, encoding="utf-8")

    def build(self) -> tuple[Path, ...]:
        return self.kvcached.build(self.base, self.said.append)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_build_is_made_once_and_again_when_an_input_changes(checkout: Checkout) -> None:
    with pytest.raises(StaleWheelError, match=r"no wheel in .*nox -s build-kvcached-host"):
        checkout.kvcached.current(checkout.base)

    (first,) = checkout.build()
    assert first.name == "kvcached-1.2+host-py2.py3-none-any.whl"
    content = first.read_bytes()
    checkout.build()
    assert len(checkout.said) == 1

    checkout.driver.write_text("#include <cuda.h>\nint answer() { return 43; }\n", encoding="utf-8")
    with pytest.raises(StaleWheelError, match="other inputs"):
        checkout.kvcached.current(checkout.base)
    (second,) = checkout.build()
    assert len(checkout.said) == 2
    assert second.read_bytes() == content

    second.write_bytes(b"replaced")
    with pytest.raises(StaleWheelError, match="changed since its build"):
        checkout.kvcached.current(checkout.base)


def test_sources_with_other_bytes_than_the_lock_says_are_refused(checkout: Checkout) -> None:
    checkout.lock("0" * 64)
    with pytest.raises(WheelError, match="DO NOT MATCH THE HASHES"):
        checkout.build()
    with pytest.raises(StaleWheelError):
        checkout.kvcached.current(checkout.base)


def test_a_stand_in_with_a_warning_is_refused(checkout: Checkout) -> None:
    checkout.driver.write_text("int answer(int unused) { return 42; }\n", encoding="utf-8")
    with pytest.raises(WheelError, match="unused parameter"):
        checkout.build()
