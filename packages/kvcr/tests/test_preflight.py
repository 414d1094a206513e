# SPDX-License-Identifier: Apache-2.0
import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from kvstrata.kvcr import ConfigError, MissingDependencyError
from kvstrata.kvcr.preflight import check_dependencies, check_port_free


def test_the_installed_kvcr_and_nixl_are_supported() -> None:
    check_dependencies()
    assert metadata.version("kvcr") == "0.1.1"


@pytest.mark.parametrize("found", ["0.1.0", "0.2.0", None])
def test_another_kvcr_or_none_is_refused_with_the_command_to_run(
    found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(MissingDependencyError, match=r"pip install kvcr==0\.1\.1"):
        check_dependencies()


@pytest.mark.parametrize("module", ["kvcr", "nixl"])
def test_a_kvcr_or_nixl_that_cannot_be_imported_is_refused(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=module):
        check_dependencies()


def test_a_port_in_use_is_refused_by_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"control_port is {port}") as caught:
            check_port_free("control_port", "127.0.0.1", port)
    assert caught.value.setting == "control_port"
    check_port_free("control_port", "127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 28500), ("::1", 28500), ("127.0.0.1", 70_000)]
)
def test_an_address_that_cannot_be_bound_is_refused(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="Choose another control_port"):
        check_port_free("control_port", host, port)


@pytest.mark.integration
def test_without_a_compiler_the_packages_to_install_are_named(tmp_path: Path) -> None:
    script = "from kvstrata.kvcr.preflight import check_page_hash; check_page_hash()"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PATH": str(tmp_path), "TORCH_EXTENSIONS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode != 0
    assert "apt-get install g++ ninja-build libssl-dev" in run.stderr.splitlines()[-1]
