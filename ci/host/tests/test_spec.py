# SPDX-License-Identifier: Apache-2.0
"""The command line and the environment that a spec stands for."""

import json
import os
import sys
from pathlib import Path

import pytest

from kvstrata_host.spec import ServerSpec


def spec(**changes: object) -> ServerSpec:
    fields: dict[str, object] = {"name": "A", "model": Path("m"), "log": Path("a.log")} | changes
    return ServerSpec(**fields)  # type: ignore[arg-type]


def option(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]


def test_the_server_listens_on_loopback_alone() -> None:
    command = spec().command(31000)
    assert option(command, "--host") == "127.0.0.1"
    assert option(command, "--port") == "31000"


def test_storage_options_appear_only_with_a_storage_backend() -> None:
    assert not any("storage" in text for text in spec().command(1))
    command = spec(storage_backend="file", extra_config={"a": {"b": 1}}).command(1)
    assert option(command, "--hicache-storage-backend") == "file"
    assert json.loads(option(command, "--hicache-storage-backend-extra-config")) == {"a": {"b": 1}}


def test_storage_is_exchanged_at_run_time_only_with_a_key() -> None:
    assert "--admin-api-key" not in spec().command(1)
    assert option(spec(admin_key="secret").command(1), "--admin-api-key") == "secret"


def test_extra_arguments_come_last_so_that_they_win() -> None:
    assert spec(extra_args=("--page-size", "64")).command(1)[-2:] == ("--page-size", "64")


def test_the_model_is_found_from_any_working_directory() -> None:
    assert Path(option(spec().command(1), "--model-path")).is_absolute()


def test_the_server_runs_under_this_python_unless_another_is_named() -> None:
    assert spec().command(1)[0] == sys.executable
    assert spec(python=Path("other/python")).command(1)[0] == "other/python"


def test_the_environment_selects_the_platform_and_lets_the_spec_win() -> None:
    environment = spec(extra_env={"TRITON_INTERPRET": "0"}).environment()
    assert environment["SGLANG_PLATFORM"] == "kvstrata_host"
    assert environment["TRITON_INTERPRET"] == "0"


def test_several_ranks_have_a_core_each_and_one_rank_has_all() -> None:
    ranks = spec(tp_size=3)
    assert option(ranks.command(1), "--tp-size") == "3"
    cores = ranks.environment()["SGLANG_CPU_OMP_THREADS_BIND"].split("|")
    assert len(cores) == 3
    assert {int(core) for core in cores} <= os.sched_getaffinity(0)
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in spec().environment()


@pytest.mark.parametrize(
    ("layout", "io_backend"),
    [("page_first", "direct"), ("page_first_direct", "kernel"), ("page_head", "kernel")],
)
def test_a_layout_that_does_not_run_is_refused_by_name(layout: str, io_backend: str) -> None:
    with pytest.raises(
        ValueError, match=f"server A: .*{layout}/{io_backend}.* allowed: layer_first"
    ):
        spec(layout=layout, io_backend=io_backend)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"server A: port={port} must be 0 to 65535"):
        spec(port=port)
