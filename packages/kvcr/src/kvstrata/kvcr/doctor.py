# SPDX-License-Identifier: Apache-2.0
"""Checks of an installation, each with what to do about it, without a server."""

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import psutil

from .config import KvcrConfig
from .errors import ConfigError, KvcrError
from .preflight import check_dependencies, check_page_hash, check_port_free

Level = Literal["ok", "warn", "fail"]
Announce = Callable[[str], None]
"""Told what is being done before it takes long."""

_CHILD_SECONDS = 180
_KVCR_START_SECONDS = 30.0
"""How long KVCR 0.1.1 waits for its own start; it has no setting for that."""

_LITTLE_SHM_BYTES = 128 << 20

_Answer = TypeVar("_Answer")


class Finding(msgspec.Struct, frozen=True):
    """What one check found, and what to do if that is not fine."""

    check: str
    level: Level
    detail: str
    fix: str = ""


class _ChildError(KvcrError):
    """A child process of a check failed; says why."""


def examine(extra_config: str | None, ranks: int, announce: Announce) -> Iterator[Finding]:
    """Run all checks, the quick ones first; those that depend on what failed are left out.

    Args:
        extra_config: what ``--hicache-storage-backend-extra-config`` is given: JSON, or ``@file``.
        ranks: how many ranks the server has on this host.
    """
    yield check_versions()
    yield _within("kvcr", "kvcr and nixl can be imported", check_dependencies)
    yield check_shared_memory()
    announce("importing SGLang")
    config, settings = check_settings(extra_config)
    yield settings
    local_host = ""
    if config is not None:
        bind_host = check_bind_host(config)
        yield bind_host
        local_host = config.bind_host if bind_host.level == "ok" else ""
        yield from check_ports(config, ranks)
        yield check_memory(config, ranks)
        yield check_locked_memory(config)
    announce("compiling SGLang's page hash, at first use")
    yield _within("page hash", "compiled", check_page_hash)
    announce("applying the hooks to SGLang and KVCR in a process of its own")
    yield check_hooks()
    announce("starting NIXL")
    yield from check_nixl(config)
    if local_host:
        announce("restoring pages from peer to peer, in two processes")
        yield check_round_trip(local_host)


def _within(check: str, fine: str, run: Callable[[], None]) -> Finding:
    try:
        run()
    except KvcrError as error:
        return Finding(check, "fail", str(error))
    return Finding(check, "ok", fine)


def check_versions() -> Finding:
    found = {"python": platform.python_version()}
    for name in ("sglang", "kvcr", "nixl", "kvstrata-kvcr"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    detail = ", ".join(f"{name} {version}" for name, version in found.items())
    if found["sglang"] == "none":
        fix = 'Run: pip install "kvstrata-kvcr[sglang]"'
        return Finding("versions", "fail", detail, fix)
    return Finding("versions", "ok", detail)


def check_settings(extra_config: str | None) -> tuple[KvcrConfig | None, Finding]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import (
                HybridCacheController,
            )
    except ImportError as error:
        return None, Finding("settings", "fail", f"SGLang cannot be imported: {error}")
    try:
        # SGLang takes its own keys out, as at the start of a server.
        own, *_ = HybridCacheController.parse_storage_backend_extra_config(extra_config)
        own.pop("tp_lcm_size", None)
    except Exception as error:  # noqa: BLE001 - SGLang and its parsers raise any type
        fix = "Write it as JSON, or @ and the name of a file."
        return None, Finding("settings", "fail", f"SGLang cannot read it: {error}", fix)
    try:
        config = KvcrConfig.parse(own)
    except ConfigError as error:
        return None, Finding("settings", "fail", str(error))
    if config.trust_request_hints and not config.allowed_peers:
        detail = "trust_request_hints is on and allowed_peers is empty: clients choose the peers"
        return config, Finding("settings", "warn", detail, "List the replicas in allowed_peers.")
    return config, Finding("settings", "ok", f"{len(own)} set, the others by default")


def check_bind_host(config: KvcrConfig) -> Finding:
    host = config.bind_host
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            fix = "Set bind_host to an IPv4 address of this host."
            return Finding("bind_host", "fail", f"{host}: {error}", fix)
    if config.advertise_host:
        try:
            socket.getaddrinfo(config.advertise_host, None, socket.AF_INET)
        except OSError as error:
            detail = f"advertise_host {config.advertise_host}: {error}"
            fix = "Set advertise_host to a name or an IPv4 address that peers know this host by."
            return Finding("bind_host", "fail", detail, fix)
    return Finding("bind_host", "ok", f"{host} is an address of this host")


def check_ports(config: KvcrConfig, ranks: int) -> Iterator[Finding]:
    first = {"control_port": config.control_port, "nixl_port": config.nixl_port}
    hosts = {"control_port": config.bind_host, "nixl_port": ""}
    for setting, port in first.items():
        try:
            for rank in range(ranks):
                check_port_free(setting, hosts[setting], port + rank)
        except ConfigError as error:
            yield Finding(setting, "fail", str(error))
        else:
            last = port + ranks - 1
            span = f"{port}" if ranks == 1 else f"{port} to {last}"
            yield Finding(setting, "ok", f"{span} can be listened on")
    apart = abs(config.control_port - config.nixl_port)
    if apart < ranks:
        detail = f"control_port and nixl_port are {apart} apart and overlap with {ranks} ranks"
        yield Finding("ports", "fail", detail, f"Set them at least {ranks} apart.")


def check_memory(config: KvcrConfig, ranks: int) -> Finding:
    wanted = config.dram_bytes * ranks
    limits = {"available": psutil.virtual_memory().available}
    cgroup = Path("/sys/fs/cgroup/memory.max")
    if cgroup.is_file() and (limit := cgroup.read_text().strip()) != "max":
        limits["the limit of this container"] = int(limit)
    detail = f"dram_bytes takes {_gib(wanted)} for {ranks} rank(s), beside SGLang's host pool"
    for name, limit_bytes in limits.items():
        if wanted > limit_bytes:
            return Finding(
                "memory", "fail", f"{detail}; {name}: {_gib(limit_bytes)}", "Lower dram_bytes."
            )
    return Finding("memory", "ok", f"{detail}; available: {_gib(limits['available'])}")


def check_locked_memory(config: KvcrConfig) -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY or limit >= config.dram_bytes:
        return Finding("locked memory", "ok", "enough to register dram_bytes with an RDMA device")
    detail = f"RLIMIT_MEMLOCK is {_gib(limit)}, below dram_bytes: RDMA devices cannot register it"
    fix = "Raise it (ulimit -l unlimited) where there is an RDMA device; else leave it."
    return Finding("locked memory", "warn", detail, fix)


def check_shared_memory() -> Finding:
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        fix = "Mount a tmpfs there, which UCX and SGLang use between processes of one host."
        return Finding("/dev/shm", "fail", "cannot be written to", fix)
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_SHM_BYTES:
        fix = "Give the container more, for example: docker run --shm-size 1g."
        return Finding("/dev/shm", "warn", f"{_gib(free)} free", fix)
    return Finding("/dev/shm", "ok", f"{_gib(free)} free")


def check_hooks() -> Finding:
    fix = "Run python -m kvstrata.seams, which shows what differs."
    try:
        run = _run("kvstrata.seams", "--json")
        report = msgspec.json.decode(run.stdout, type=dict[str, list[object]])
    except _ChildError as error:
        return Finding("hooks", "fail", str(error), fix)
    except msgspec.MsgspecError:
        return Finding("hooks", "fail", _last_line(run.stderr), fix)
    if run.returncode != 0:
        return Finding("hooks", "fail", "a hooked function is not as it is known", fix)
    return Finding("hooks", "ok", f"{len(report['hooks'])} supported and applied")


def check_nixl(config: KvcrConfig | None) -> Iterator[Finding]:
    from .transports import NixlView

    try:
        view = _ask(NixlView, "kvstrata.kvcr.transports")
    except _ChildError as error:
        tls = os.environ.get("UCX_TLS")
        fix = f"UCX_TLS is {tls!r}: unset it, or add tcp to it." if tls else "See NIXL's message."
        yield Finding("ucx", "fail", f"NIXL has no agent here: {error}", fix)
        return
    present = [name for name, devices in view.transports.items() if devices]
    absent = [name for name, devices in view.transports.items() if not devices]
    detail = f"{', '.join(present) or 'not known'}; agent in {view.agent_seconds:.1f} s"
    if absent:
        detail += f"; without a device: {', '.join(absent)}"
    yield Finding("ucx", "ok", detail)
    if config is None:
        return
    share = config.dram_bytes / view.sample_bytes
    resident, registered = view.resident_seconds * share, view.registration_seconds * share
    detail = (
        f"by a sample of {_gib(view.sample_bytes)}, dram_bytes is resident in {resident:.0f} s and "
        f"registered in {registered:.1f} s"
    )
    if view.agent_seconds + registered > _KVCR_START_SECONDS:
        fix = f"KVCR waits {_KVCR_START_SECONDS:g} s: lower dram_bytes."
        yield Finding("start", "fail", detail, fix)
    elif resident > config.startup_timeout_seconds:
        fix = f"Lower dram_bytes, or raise startup_timeout_seconds above {resident:.0f}."
        yield Finding("start", "fail", detail, fix)
    else:
        yield Finding("start", "ok", detail)


def check_round_trip(host: str) -> Finding:
    from .loopback import RoundTrip

    host = "127.0.0.1" if host == "0.0.0.0" else host
    module = "kvstrata.kvcr.loopback"
    fix = "Look for a firewall on the host's own address, and at UCX_TLS and UCX_NET_DEVICES."
    control, nixl, own_control, own_nixl = _free_ports(host, 4)
    source = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, "source", host, control, nixl],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    guard = threading.Timer(_CHILD_SECONDS, source.kill)
    guard.start()
    try:
        if source.stdout is None or "ready\n" not in iter(source.stdout.readline, ""):
            return Finding("round trip", "fail", f"no source came up on {host}", fix)
        trip = _ask(RoundTrip, module, "target", host, own_control, own_nixl, control)
    except _ChildError as error:
        return Finding("round trip", "fail", str(error), fix)
    finally:
        guard.cancel()
        source.kill()
        source.communicate()
    detail = (
        f"{trip.restored} of {trip.pages} pages of {trip.page_bytes} bytes restored over {host} in "
        f"{trip.seconds * 1000:.0f} ms"
    )
    if trip.wrong:
        return Finding("round trip", "fail", f"{detail}; {trip.wrong} have wrong bytes", fix)
    if trip.restored < trip.pages:
        return Finding("round trip", "fail", detail, fix)
    return Finding("round trip", "ok", f"{detail}, every byte as it was")


def _run(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a module in a process of its own; raises _ChildError if it takes too long."""
    try:
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", module, *arguments],
            capture_output=True,
            text=True,
            timeout=_CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _ChildError(f"{module} gave no answer in {_CHILD_SECONDS} s") from None


def _ask(answer: type[_Answer], module: str, *arguments: str) -> _Answer:
    """The JSON that a module of this package prints last; raises _ChildError."""
    run = _run(module, *arguments)
    if run.returncode != 0:
        raise _ChildError(_last_line(run.stderr))
    try:
        return msgspec.json.decode(_last_line(run.stdout), type=answer)
    except msgspec.MsgspecError as error:
        raise _ChildError(f"an answer that cannot be read: {error}") from error


def _free_ports(host: str, count: int) -> list[str]:
    """Ports that are free now, as arguments."""
    sockets = [socket.create_server((host, 0)) for _ in range(count)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.2f} GiB"
