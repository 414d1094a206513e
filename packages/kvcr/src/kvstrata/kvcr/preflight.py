# SPDX-License-Identifier: Apache-2.0
"""Checks made before the server starts, so that a fault is named instead of met later."""

import socket
from importlib import metadata

from .errors import ConfigError, MissingDependencyError

SUPPORTED_KVCR = ("0.1.1",)


def check_dependencies() -> None:
    """Raise MissingDependencyError unless a supported KVCR and NIXL can be imported."""
    try:
        found = metadata.version("kvcr")
    except metadata.PackageNotFoundError:
        found = "none"
    if found not in SUPPORTED_KVCR:
        raise MissingDependencyError(
            f"kvcr {' or '.join(SUPPORTED_KVCR)} is needed, found {found}. "
            f"Run: pip install kvcr=={SUPPORTED_KVCR[-1]}"
        )
    try:
        import kvcr  # noqa: F401
        import nixl  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"kvcr or nixl is installed but cannot be imported ({error}). "
            f"Run: pip install --force-reinstall kvcr=={SUPPORTED_KVCR[-1]} nixl"
        ) from error


def check_page_hash() -> None:
    """Compile SGLang's page hash now, instead of in a storage thread at the first request."""
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    try:
        get_storage_hash_str([0], None, page_size=1)
    except RuntimeError as error:
        raise MissingDependencyError(
            "SGLang's page hash could not be compiled: it needs a C++ compiler, ninja and the "
            "OpenSSL headers. On Debian and Ubuntu run: apt-get install g++ ninja-build libssl-dev"
            f" ({error.__cause__ or error})"
        ) from error


def check_port_free(setting: str, host: str, port: int) -> None:
    """Raise ConfigError if an IPv4 port cannot be listened on; an empty host is every interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                setting,
                port,
                f"a TCP port that is free on {host or 'every interface'}",
                f"Choose another {setting} ({error}).",
            ) from error
