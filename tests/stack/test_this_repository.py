# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stackkit import HOST, Package, Workspace, disagreements

ROOT = Path(__file__).parents[2]
WORKSPACE = Workspace.open(ROOT)
FOLDERS = [ROOT / entry.package for entry in WORKSPACE.stacks.slices.values()]
slice_folders = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def test_declared_requirements_and_pins_equal_those_of_the_packages() -> None:
    assert disagreements(WORKSPACE.stacks, ROOT) == []


def test_every_package_is_declared_as_a_slice() -> None:
    assert {path.parent for path in (ROOT / "packages").glob("*/pyproject.toml")} == set(FOLDERS)


@slice_folders
def test_a_package_has_what_its_readers_expect(folder: Path) -> None:
    package = Package.read(folder)
    module = folder / "src" / "kvstrata" / folder.name.replace("-", "_")

    assert (module / "py.typed").is_file()
    assert not (folder / "src" / "kvstrata" / "__init__.py").exists(), "a namespace package"
    assert package.distribution in (folder / "README.md").read_text(encoding="utf-8")
    assert "towncrier release notes start" in (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@slice_folders
def test_installing_a_slice_never_installs_a_host(folder: Path) -> None:
    hosts = {"sglang", "torch", "kvcached"}

    assert hosts.isdisjoint(requirement.name for requirement in Package.read(folder).dependencies)


def locked(lock: Path) -> Iterator[tuple[str, str]]:
    """The distributions of a lock with their exact versions."""
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line.lstrip().startswith(("#", "--hash=")):
            requirement = Requirement(line.removesuffix("\\"))
            (exact,) = requirement.specifier
            assert exact.operator == "==", f"{lock.name}: {line}"
            yield canonicalize_name(requirement.name), exact.version


def test_the_locks_hold_exact_versions_that_agree_and_include_the_pins() -> None:
    versions: dict[str, str] = {}
    of_releases = {WORKSPACE.release_lock(each) for each in WORKSPACE.stacks.releases}
    for lock in sorted(set((ROOT / "ci" / "constraints").glob("*.txt")) - of_releases):
        for name, version in locked(lock):
            assert versions.setdefault(name, version) == version, f"{lock.name}: {name}"
    for entry in WORKSPACE.stacks.slices.values():
        for pin in entry.pins:
            assert versions[pin.distribution] == pin.version


def test_every_further_release_has_a_lock_of_only_what_differs_from_the_base() -> None:
    base, *others = WORKSPACE.stacks.releases
    assert not WORKSPACE.release_lock(base).exists()
    assert others
    in_base = dict(locked(WORKSPACE.lock("runtime")))
    for release in others:
        differing = dict(locked(WORKSPACE.release_lock(release)))
        assert differing[HOST] == release
        assert not differing.items() & in_base.items()


def test_tracked_python_files_carry_a_licence_line() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.toml", ".ci/run"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    unmarked = [
        name
        for name in listed
        if not name.endswith("pyproject.toml")
        and not re.search(
            r"^# SPDX-License-Identifier: Apache-2\.0$",
            "\n".join((ROOT / name).read_text(encoding="utf-8").splitlines()[:2]),
            re.MULTILINE,
        )
    ]

    assert unmarked == []
