# SPDX-License-Identifier: Apache-2.0
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstrata.kvcr import KvcrConfig, doctor, loopback
from kvstrata.kvcr.__main__ import main
from kvstrata.kvcr.doctor import (
    check_bind_host,
    check_hooks,
    check_locked_memory,
    check_memory,
    check_nixl,
    check_ports,
    check_round_trip,
    check_settings,
    check_shared_memory,
)
from kvstrata_host.ports import free_ports

pytestmark = [pytest.mark.timeout(600)]


def test_an_address_of_another_host_is_a_failure() -> None:
    assert check_bind_host(KvcrConfig()).level == "ok"
    finding = check_bind_host(KvcrConfig(bind_host="192.0.2.1"))
    assert (finding.level, finding.check) == ("fail", "bind_host")
    assert "192.0.2.1" in finding.detail
    assert finding.fix


def test_a_name_that_peers_could_not_look_up_is_a_failure() -> None:
    finding = check_bind_host(KvcrConfig(advertise_host="no-such-host.invalid"))
    assert finding.level == "fail"
    assert "no-such-host.invalid" in finding.detail


def test_the_ports_of_every_rank_are_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        config = KvcrConfig(control_port=taken - 1, nixl_port=free_ports(1)[0])
        levels = [
            {finding.check: finding.level for finding in check_ports(config, ranks)}
            for ranks in (1, 2)
        ]
    assert [each["control_port"] for each in levels] == ["ok", "fail"]


def test_ports_that_overlap_with_many_ranks_are_a_failure() -> None:
    config = KvcrConfig(control_port=28500, nixl_port=28502)
    assert "ports" not in [finding.check for finding in check_ports(config, 2)]
    assert "ports" in [finding.check for finding in check_ports(config, 3)]


def test_memory_is_counted_for_all_ranks() -> None:
    assert check_memory(KvcrConfig(dram_bytes=1 << 20), ranks=1).level == "ok"
    assert check_memory(KvcrConfig(dram_bytes=1 << 40), ranks=1 << 20).level == "fail"


def test_a_low_limit_of_locked_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    config = KvcrConfig(dram_bytes=1 << 30)
    for limit, level in ((1 << 20, "warn"), (1 << 30, "ok"), (resource.RLIM_INFINITY, "ok")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert check_locked_memory(config).level == level


def test_little_shared_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, level in ((64 << 20, "warn"), (1 << 30, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert check_shared_memory().level == level


@pytest.mark.integration
def test_settings_are_read_as_a_server_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "kvcr.toml"
    file.write_text('dram_bytes = "2GiB"\nprefetch_timeout_base = 5\n')
    config, finding = check_settings(f"@{file}")
    assert finding.level == "ok"
    assert config is not None
    assert config.dram_bytes == 2 << 30


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "SGLang cannot read it"),
        ('{"prefetch_timeout_base": "long"}', "prefetch_timeout_base"),
        ('{"contrl_port": 1}', "Did you mean 'control_port'"),
        ("@/no/such/file.toml", "no/such/file.toml"),
    ],
)
def test_settings_that_would_stop_a_server_are_a_failure(text: str, part: str) -> None:
    config, finding = check_settings(text)
    assert config is None
    assert finding.level == "fail"
    assert part in finding.detail


@pytest.mark.integration
def test_hints_of_clients_to_any_address_are_a_warning() -> None:
    _, finding = check_settings('{"trust_request_hints": true}')
    assert finding.level == "warn"
    assert "allowed_peers" in finding.fix


@pytest.mark.integration
def test_transports_that_nixl_cannot_use_are_a_failure_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCX_TLS", "shm")
    [finding] = check_nixl(None)
    assert (finding.check, finding.level) == ("ucx", "fail")
    assert "UCX_TLS is 'shm'" in finding.fix


@pytest.mark.integration
def test_a_tier_that_would_start_too_slowly_is_a_failure() -> None:
    ucx, start = check_nixl(KvcrConfig(dram_bytes=1 << 30, startup_timeout_seconds=3600))
    assert (ucx.level, start.level) == ("ok", "ok")
    assert "tcp" in ucx.detail
    _, start = check_nixl(KvcrConfig(dram_bytes=1 << 44, startup_timeout_seconds=1))
    assert (start.check, start.level) == ("start", "fail")
    assert start.fix


@pytest.mark.integration
def test_a_child_that_never_answers_is_a_failure_of_its_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_CHILD_SECONDS", 0.1)
    for finding in (check_hooks(), *check_nixl(None)):
        assert finding.level == "fail"
        assert "no answer in 0.1 s" in finding.detail


@pytest.mark.integration
def test_a_host_on_which_no_source_comes_up_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "shm")
    finding = check_round_trip("127.0.0.1")
    assert (finding.check, finding.level) == ("round trip", "fail")


@pytest.mark.integration
def test_a_round_trip_notices_bytes_that_are_not_those_of_the_source(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert check_round_trip("127.0.0.1").level == "ok"
    contents = loopback._contents
    ports = [str(port) for port in free_ports(4)]
    module = [sys.executable, "-m", "kvstrata.kvcr.loopback"]
    with subprocess.Popen(
        [*module, "source", "127.0.0.1", *ports[:2]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as source:
        assert source.stdout is not None
        assert "ready\n" in iter(source.stdout.readline, "")
        monkeypatch.setattr(loopback, "_contents", lambda page: contents(page if page else 1))
        loopback.main(["target", "127.0.0.1", *ports[2:], ports[0]])
        source.kill()
    trip = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (trip["restored"], trip["wrong"]) == (32, 1)


@pytest.mark.integration
def test_the_command_checks_everything_and_succeeds_here() -> None:
    control, nixl = free_ports(1)[0], free_ports(1)[0]
    settings = {"dram_bytes": "64MiB", "control_port": control, "nixl_port": nixl}
    run = subprocess.run(
        [sys.executable, "-m", "kvstrata.kvcr", "doctor", "--json", json.dumps(settings)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    findings = {each["check"]: each for each in json.loads(run.stdout)}
    assert not [each for each in findings.values() if each["level"] == "fail"]
    assert run.returncode == 0
    assert list(findings) == [
        "versions",
        "kvcr",
        "/dev/shm",
        "settings",
        "bind_host",
        "control_port",
        "nixl_port",
        "memory",
        "locked memory",
        "page hash",
        "hooks",
        "ucx",
        "start",
        "round trip",
    ]
    assert "every byte as it was" in findings["round trip"]["detail"]
    assert "... restoring pages from peer to peer" in run.stderr


@pytest.mark.parametrize("arguments", [[], ["doctor", "--ranks", "0"], ["doctr"]])
def test_a_command_that_is_not_understood_says_how_it_is_used(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m kvstrata.kvcr" in capsys.readouterr().err


def test_the_help_says_what_the_exit_code_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    assert "Exit code: 1 if anything failed." in capsys.readouterr().out
