# SPDX-License-Identifier: Apache-2.0
"""Whether anything may be managed at all, decided before kvcached is touched."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

SWITCH = "ENABLE_KVCACHED"
SGLANG_VERSION = "0.5.20"
KVCACHED_VERSION = "0.1.6"

_ON = ("1", "true")
_OFF = ("", "0", "false")

_log = logging.getLogger(__name__)


def is_enabled(environment: Mapping[str, str]) -> bool:
    """Whether ENABLE_KVCACHED is on: 1 or true in any case, as kvcached itself reads it."""
    value = environment.get(SWITCH, "")
    if value.lower() not in _ON + _OFF:
        _log.warning(
            "%s is %r; allowed: %s for on, %s for off. It counts as off.",
            SWITCH,
            value,
            " or ".join(_ON),
            " or ".join(map(repr, _OFF)),
        )
    return value.lower() in _ON


def kvcached_version() -> str | None:
    """The installed release of kvcached, without a local label; None without one."""
    try:
        return version("kvcached").partition("+")[0]
    except PackageNotFoundError:
        return None


def is_supported(environment: Mapping[str, str]) -> bool:
    """Whether hooks may be applied: ENABLE_KVCACHED is on, and kvcached is the supported release.

    Another release is warned of.
    """
    if not is_enabled(environment):
        return False
    found = kvcached_version()
    if found != KVCACHED_VERSION:
        _log.warning(
            "DeepSeek-V4 pools stay native: kvcached is %s; supported: %s",
            found or "not installed",
            KVCACHED_VERSION,
        )
    return found == KVCACHED_VERSION


@dataclass(frozen=True)
class Circumstances:
    """What decides between native and managed pools. None means that it is not known."""

    tp_size: int | None
    pp_size: int | None
    kvcached_version: str | None
    contiguous_layout: bool | None
    device_type: str
    memory_saver: bool = False
    hierarchical_cache: bool = False
    external_linker: bool = False
    disaggregation: bool = False
    draft: bool = False
    unified_kv: bool = False
    hisparse: bool = False
    aiter_fp4: bool = False


def native_reason(seen: Circumstances) -> str | None:
    """Why every pool of the model has to be native, or None if some may be managed."""
    for name, size in (("TP", seen.tp_size), ("PP", seen.pp_size)):
        if size is None:
            return f"the {name} size is not known; only a size of 1 is supported"
        if size != 1:
            return f"the {name} size is {size}; only 1 is supported"
    if seen.kvcached_version != KVCACHED_VERSION:
        found = seen.kvcached_version or "not installed"
        return f"kvcached is {found}; supported: {KVCACHED_VERSION}"
    if seen.contiguous_layout is not False:
        return (
            "kvcached's contiguous layout mixes the layers of a page; "
            "set KVCACHED_CONTIGUOUS_LAYOUT=false"
        )
    if seen.device_type not in ("cuda", "cpu"):
        return f"kvcached has no memory on the device {seen.device_type}"
    for is_so, reason in (
        (seen.draft, "the pool of a draft model shares the ids of the target"),
        (seen.unified_kv, "unified KV is addressed by request, not by page id"),
        (seen.memory_saver, "--enable-memory-saver pauses whole buffers"),
        (seen.hierarchical_cache, "HiCache registers and copies whole buffers"),
        (seen.external_linker, "a cache linker registers whole buffers"),
        (seen.disaggregation, "PD disaggregation registers whole buffers"),
    ):
        if is_so:
            return reason
    return None
