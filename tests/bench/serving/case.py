# SPDX-License-Identifier: Apache-2.0
"""What is compared: a storage backend, where it reads from, and the options that are on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import options

from kvstrata_host.spec import Json

Source = Literal["nothing", "own", "peer"]


@dataclass(frozen=True)
class Case:
    """One way of serving the same requests.

    Args:
        storage: SGLang's name of the backend, empty for none.
        source: where the prefixes are when the requests come.
        tuning: the options that are on.
    """

    name: str
    storage: str
    source: Source
    tuning: Mapping[str, Json] = field(default_factory=dict)


def cases() -> tuple[Case, ...]:
    """Every storage, then KVCR with each option alone and with all together."""
    found = [
        Case("none", "", "nothing"),
        Case("file", "file", "own"),
        *_kvcr("kvcr", {}),
    ]
    for name, tuning in options.alone().items():
        found += _kvcr(f"kvcr, {name}", tuning)
    if options.alone():
        found += _kvcr("kvcr, all but diagnostics", options.performance())
        found += _kvcr("kvcr, all options", options.together())
    return tuple(found)


def _kvcr(name: str, tuning: Mapping[str, Json]) -> tuple[Case, Case]:
    return (
        Case(f"{name}, local", "kvcr", "own", tuning),
        Case(f"{name}, peer", "kvcr", "peer", tuning),
    )
