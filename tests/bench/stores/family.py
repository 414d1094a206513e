# SPDX-License-Identifier: Apache-2.0
"""What is measured: a further contender is one more `Family` here."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import options

Place = Literal["local", "peer"]

TUNED = "kvcr tuned"
"""All options that are to make it faster."""

CHECKED = "kvcr checked"
"""All options, so the diagnostics too."""

SIDECAR = "kvcr, sidecar"
COMBINED = "kvcr combined, sidecar"

_VERBS = "libibverbs.so.1"


def _nothing() -> str:
    return ""


@dataclass(frozen=True)
class Family:
    """One way of moving pages, from its own memory, from a peer's, or both.

    Args:
        name: of the contenders, before their place.
        side: `module:class` of the `Side` at each end.
        places: where pages are read from.
        is_store: whether it can be asked to store pages, and which it has; else it only moves them.
        is_product: whether the limits are about it.
        source_writes: whether the source writes into its target, and so is the one that is timed.
        may_pause: whether its processes may be stopped while others work.
        settings, variables: of the contender and of its processes' environment.
        why_not: why it cannot run on this machine and what would help, or nothing.
    """

    name: str
    side: str
    places: tuple[Place, ...]
    is_store: bool = True
    is_product: bool = False
    source_writes: bool = False
    may_pause: bool = True
    settings: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    why_not: Callable[[], str] = _nothing

    def contender(self, place: Place) -> str:
        """The name under which one place is reported."""
        return f"{self.name} {place}" if self.is_store or len(self.places) > 1 else self.name


def families(scratch: Path, verbs: Path | None) -> tuple[Family, ...]:
    """All that is known, whether it can run here or not.

    Args:
        scratch: where files may be written.
        verbs: a folder with libibverbs and what it needs, None for the system's own.
    """
    on_disk = {"folder": str(scratch)}
    return (
        Family("memcpy", "stores.copies:Memcpy", ("local",)),
        Family("kvcr", "stores.kvcr:Store", ("local", "peer"), is_product=True),
        *_tuned(),
        Family("raw kvcr", "stores.kvcr:Raw", ("local", "peer")),
        Family(
            "nixl write", "stores.fabric:NixlWrite", ("peer",), is_store=False, source_writes=True
        ),
        Family(
            "ucxx",
            "stores.fabric:Ucx",
            ("peer",),
            is_store=False,
            why_not=lambda: _without_module("ucxx", "ucxx-cu12"),
        ),
        Family("file", "stores.backends:File", ("local",), settings={"backend": "file", **on_disk}),
        Family(
            "nixl posix",
            "stores.backends:NixlPosix",
            ("local",),
            settings={"backend": "nixl", **on_disk},
        ),
        Family(
            "mooncake",
            "stores.backends:Mooncake",
            ("local", "peer"),
            # Its master forgets clients that are silent.
            may_pause=False,
            settings={"backend": "mooncake", "verbs": str(verbs or "")},
            why_not=lambda: _without_mooncake(verbs),
        ),
    )


def _tuned() -> tuple[Family, ...]:
    """KVCR with options on, and a model with a sidecar without and with combined IO."""

    def family(name: str, side: str, tuning: options.Tuning, *, is_product: bool = False) -> Family:
        return Family(
            name,
            side,
            ("local", "peer"),
            is_product=is_product,
            settings={"tuning": dict(tuning)},
            why_not=_without_tuning,
        )

    installed = bool(options.alone())
    store, sidecar = "stores.kvcr:Store", "stores.kvcr:WithSidecar"
    return (
        family(CHECKED, store, options.together()),
        family(TUNED, store, options.performance(), is_product=installed),
        Family(SIDECAR, sidecar, ("local", "peer")),
        family(COMBINED, sidecar, {"combined_io": True}),
    )


def _without_tuning() -> str:
    return _without_module("kvstrata.kvcr_tuning", "kvstrata-kvcr-tuning")


def _without_module(module: str, distribution: str) -> str:
    if find_spec(module) is not None:
        return ""
    return f"the module {module} is not installed; pip install {distribution}"


def _without_mooncake(verbs: Path | None) -> str:
    missing = _without_module("mooncake", "mooncake-transfer-engine-non-cuda")
    if missing:
        return missing
    if verbs is not None:
        here = (verbs / _VERBS).exists()
        return "" if here else f"--verbs {verbs} has no {_VERBS}; unpack libibverbs1 there"
    try:
        ctypes.CDLL(_VERBS)
    except OSError:
        return (
            f"{_VERBS} is missing; unpack Debian's libibverbs1, libnl-3-200 and libnl-route-3-200 "
            "into a folder for --verbs"
        )
    return ""
