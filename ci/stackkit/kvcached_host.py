# SPDX-License-Identifier: Apache-2.0
"""kvcached's released sources as a wheel that runs over host memory."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .environment import Environment, check_compiler
from .relabel import relabel
from .wheel import StaleWheelError, WheelError

_LABEL = "host"
_COMPILE = ("g++", "-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
# kvcached links all of them; the stand-in is the first, the others are empty.
_LIBRARIES = ("cuda", "cudart", "c10_cuda", "torch_cuda")
_FIX = "run `nox -s build-kvcached-host`"


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    made_from: str
    sha256: dict[str, str]


@dataclass(frozen=True)
class KvcachedHost:
    """The build of kvcached for a host, and the wheels that it needs beside the base environment.

    `sources` has the stand-ins for CUDA, `lock` pins the distributions and their bytes, `folder`
    receives the wheels.
    """

    sources: Path
    lock: Path
    folder: Path

    def build(self, base: Environment, report: Callable[[str], None]) -> tuple[Path, ...]:
        """Build against the torch of `base`, unless it was done from the same inputs.

        The stand-ins must compile without a warning. Raises SetupError and WheelError.
        """
        try:
            return self.current(base)
        except StaleWheelError:
            shutil.rmtree(self.folder, ignore_errors=True)
        check_compiler()
        self.folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as temporary:
            cuda, built = Path(temporary, "cuda"), Path(temporary, "built")
            self._make_cuda(cuda)
            report("compiling kvcached's sources")
            # Without the cache: the wheel bears the name of the published release.
            self._pip(base, cuda, ["wheel", "--no-cache-dir", "--wheel-dir", str(built)])
            for wheel in sorted(built.glob("*.whl")):
                if wheel.name.startswith("kvcached-"):
                    relabel(wheel, _LABEL, self.folder)
                else:
                    shutil.move(wheel, self.folder)
        hashes = {path.name: _sha256(path) for path in sorted(self.folder.glob("*.whl"))}
        record = _Record(self._made_from(base), hashes)
        (self.folder / "record.json").write_bytes(msgspec.json.encode(record))
        return self.current(base)

    def sources_as_released(self, base: Environment, into: Path) -> Path:
        """The archive of the pinned release, downloaded once; its bytes are those of the lock.

        Raises WheelError.
        """
        into.mkdir(parents=True, exist_ok=True)
        locked = self.lock.read_text(encoding="utf-8")
        for archive in into.glob("kvcached-*.tar.gz"):
            if f"kvcached=={_release(archive)} " in locked and _sha256(archive) in locked:
                return archive
            archive.unlink()
        with tempfile.TemporaryDirectory() as temporary:
            cuda, got = Path(temporary, "cuda"), Path(temporary, "got")
            self._make_cuda(cuda)
            self._pip(base, cuda, ["download", "--dest", str(got)])
            (archive,) = got.glob("kvcached-*.tar.gz")
            return Path(shutil.move(archive, into))

    def current(self, base: Environment) -> tuple[Path, ...]:
        """The wheels; StaleWheelError unless they were built from the present files and `base`."""
        try:
            content = (self.folder / "record.json").read_bytes()
            record = msgspec.json.decode(content, type=_Record)
            present = {name: _sha256(self.folder / name) for name in record.sha256}
        except FileNotFoundError as error:
            raise StaleWheelError(f"kvcached: no wheel in {self.folder}; {_FIX}") from error
        if present != record.sha256:
            raise StaleWheelError(f"kvcached: {self.folder} changed since its build; {_FIX}")
        if record.made_from != self._made_from(base):
            raise StaleWheelError(f"kvcached: its wheel was built from other inputs; {_FIX}")
        return tuple(self.folder / name for name in record.sha256)

    def _made_from(self, base: Environment) -> str:
        total = hashlib.sha256(base.made_from.encode())
        stackkit = Path(__file__).parent
        files = [self.lock, *(stackkit / name for name in ("kvcached_host.py", "relabel.py"))]
        for folder in ("include", "build_hooks"):
            files += sorted((self.sources / folder).glob("*.*"))
        for file in [*files, self.sources / "vmm.cpp"]:
            total.update(f"{_sha256(file)} {file.name}\n".encode())
        return total.hexdigest()

    def _make_cuda(self, cuda: Path) -> None:
        """A folder like the one of a CUDA toolkit."""
        shutil.copytree(self.sources / "include", cuda / "include")
        libraries = cuda / "lib64"
        libraries.mkdir()
        unit = cuda / "vmm.o"
        source = str(self.sources / "vmm.cpp")
        _run([*_COMPILE, "-I", str(cuda / "include"), "-c", source, "-o", str(unit)])
        for name in _LIBRARIES:
            members = [str(unit)] if name == _LIBRARIES[0] else []
            _run(["ar", "rcsD", str(libraries / f"lib{name}.a"), *members])

    def _pip(self, base: Environment, cuda: Path, command: list[str]) -> None:
        flags = ["-g0", "-include", str(cuda / "include" / "host_device.hpp")]
        # No folder of this machine reaches the wheel through a message of an assertion.
        flags += [f"-ffile-prefix-map={cuda}=cuda", f"-ffile-prefix-map={base.path}=base"]
        variables = {
            "CFLAGS": " ".join(flags),
            # The driver's names are those of CUDA: no other library may answer to them.
            "LDFLAGS": "-Wl,-Bsymbolic -Wl,--strip-all",
            "CUDA_HOME": str(cuda),
            "PYTHONPATH": str(self.sources / "build_hooks"),
            "PATH": os.pathsep.join([str(base.bin), os.environ.get("PATH", os.defpath)]),
        }
        pip = [str(base.python), "-m", "pip", "--disable-pip-version-check", *command]
        pip += ["--no-deps", "--no-build-isolation", "--require-hashes", "--no-binary", "kvcached"]
        _run([*pip, "--requirement", str(self.lock)], variables)


def _run(command: list[str], variables: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, **(variables or {})},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise WheelError(f"kvcached: `{' '.join(command)}` failed\n{done.stdout}{done.stderr}")


def _release(archive: Path) -> str:
    return archive.name.removeprefix("kvcached-").removesuffix(".tar.gz")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
