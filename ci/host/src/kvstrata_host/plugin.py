# SPDX-License-Identifier: Apache-2.0
"""The two entry points through which SGLang finds this package.

Both do nothing unless SGLANG_PLATFORM names this platform. Whatever is missing or unknown ends the
process with `HostSetupError`: SGLang logs a plugin's exceptions and goes on without it, and a
server without its copies would fail much later, inside a transfer.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from kvstrata_host import damage
from kvstrata_host.copies import COPIES

PLATFORM = "kvstrata_host"
SUPPORTED_SGLANG = ("0.5.20", "0.5.21")

POOL_MODULES = (
    "sglang.srt.mem_cache.memory_pool_host",
    "sglang.srt.mem_cache.pool_host.dsa",
    "sglang.srt.mem_cache.pool_host.mha",
    "sglang.srt.mem_cache.pool_host.mla",
)
"""Modules that call the copies through their globals, which they import only with CUDA or HIP."""

PINNED_POOLS = (
    "sglang.srt.mem_cache.memory_pool_host.DeepSeekV4PagedHostPool",
    "sglang.srt.mem_cache.memory_pool_host.DeepSeekV4StateHostPool",
    "sglang.srt.mem_cache.pool_host.base.HostKVCache",
    "sglang.srt.mem_cache.pool_host.dsa.DSAIndexerPoolHost",
)
"""Classes whose __init__ decides on pinned memory, which only a CUDA runtime can give."""

Hook = Callable[..., tuple[tuple[object, ...], dict[str, object]]]
_unhooked: dict[str, object] = {}


class HostSetupError(SystemExit):
    """This machine's SGLang cannot run on the host platform; the message says why and the fix.

    A SystemExit, because SGLang swallows a plugin's ordinary exceptions.
    """


def activate() -> str | None:
    """Entry point `sglang.srt.platforms`: the platform's dotted name, or None if not selected."""
    if not _selected():
        return None
    _check_version()
    return "kvstrata_host.platform.HostPlatform"


def load() -> None:
    """Entry point `sglang.srt.plugins`: install the copies and ask for unpinned host memory."""
    if not _selected():
        return
    _check_version()
    for name in POOL_MODULES:
        install_copies(_import(name))
    _register_hooks()


def install_copies(module: ModuleType) -> tuple[str, ...]:
    """Give a host pool module the copies it lacks, and return their names."""
    missing = tuple(name for name in COPIES if name not in vars(module))
    for name in missing:
        setattr(module, name, COPIES[name])
    return missing


def verify() -> None:
    """Raise HostSetupError unless every hook of `load` took effect in this process."""
    if not _unhooked:
        raise HostSetupError(
            f"SGLANG_PLATFORM={PLATFORM} is set, but the plugin {PLATFORM!r} was not loaded "
            f"(SGLANG_PLUGINS={os.environ.get('SGLANG_PLUGINS', '')!r}); "
            f"add {PLATFORM} to SGLANG_PLUGINS or unset it"
        )
    for target, original in _unhooked.items():
        if pkgutil.resolve_name(target) is original:
            raise HostSetupError(
                f"SGLang did not apply the hook on {target}; its log has the reason"
            )


def without_pinning(init: Callable[..., None]) -> Hook:
    """A BEFORE hook for an __init__: the same call with pin_memory=False, however it was passed."""
    signature = inspect.signature(init)
    if "pin_memory" not in signature.parameters:
        raise HostSetupError(f"{init.__qualname__} has no parameter pin_memory in this SGLang")

    def unpin(*args: object, **kwargs: object) -> tuple[tuple[object, ...], dict[str, object]]:
        call = signature.bind(*args, **kwargs)
        call.arguments["pin_memory"] = False
        return call.args, call.kwargs

    return unpin


def _register_hooks() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target in PINNED_POOLS:
        init = _resolve(target).__init__
        HookRegistry.register(f"{target}.__init__", without_pinning(init), HookType.BEFORE)
        _unhooked[f"{target}.__init__"] = init
    if _damage_requested():
        _unhooked[damage.TARGET] = pkgutil.resolve_name(damage.TARGET)
        HookRegistry.register(damage.TARGET, damage.damage_restored, HookType.AFTER)


def _damage_requested() -> bool:
    try:
        return damage.requested()
    except ValueError as error:
        raise HostSetupError(str(error)) from error


def _selected() -> bool:
    return os.environ.get("SGLANG_PLATFORM") == PLATFORM


def _check_version() -> None:
    try:
        found = version("sglang")
    except PackageNotFoundError:
        found = "not installed"
    if found not in SUPPORTED_SGLANG:
        raise HostSetupError(
            f"SGLANG_PLATFORM={PLATFORM} supports sglang {', '.join(SUPPORTED_SGLANG)}; "
            f"found: {found}. Install a supported version or unset SGLANG_PLATFORM"
        )


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise HostSetupError(
            f"cannot import {name} ({error}); sglang is not one of {', '.join(SUPPORTED_SGLANG)}, "
            "or one of its requirements is missing"
        ) from error


def _resolve(target: str) -> type[object]:
    module, _, name = target.rpartition(".")
    found = getattr(_import(module), name, None)
    if not isinstance(found, type):
        raise HostSetupError(f"sglang has no class {target}; it is not a supported version")
    return found
