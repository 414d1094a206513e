# SPDX-License-Identifier: Apache-2.0
"""Stores on real host pools, with options on."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kvcr.types import BlockKey, MemoryRef

from kvstrata.kvcr.hints import Hint, carrying
from kvstrata.kvcr.keys import page_keys
from kvstrata.kvcr.runner import Runner
from kvstrata_host.kvcr.replica import PATIENT, PlainReplica, page_hash, pools_of, settings


@contextmanager
def replica(
    tuning: Mapping[str, object], kind: str = "mha", layout: str = "page_first", **changes: object
) -> Iterator[PlainReplica]:
    """A store of one kind of model with these options."""
    made = PlainReplica(
        pools_of(kind, layout), settings(**(PATIENT | changes), tuning=dict(tuning))
    )
    try:
        yield made
    finally:
        made.close()


def every(made: PlainReplica, expected: Sequence[bool]) -> dict[str, list[bool]]:
    """These results in all pools that have bytes; pages of others are always had."""
    return {
        name: list(expected) if pool.page_bytes else [True] * len(expected)
        for name, pool in made.pools.items()
    }


def restore(made: PlainReplica, pages: Sequence[int], hint: Hint | None = None) -> Any:
    """Restore into cleared memory, every byte of which is checked."""
    with carrying(hint):
        return made.restore(pages)


def public_claims(runner: Runner) -> int:
    """How many claims on pages of its tier KVCR knows of."""
    return len(runner._kvcr._core._local_dram._public_claims)


def kv_key(made: PlainReplica, page: int) -> BlockKey:
    """The key of a KV page."""
    session: Any = made.store._session
    return page_keys([page_hash(page)], session.namespaces["kv"])[0]


def damage(made: PlainReplica, page: int, part: int = 0) -> None:
    """Change one byte of a KV page in the DRAM tier."""
    key = kv_key(made, page)
    with made.runner.claimed([key], made.runner.pools.named("kv").labels, None) as addresses:
        byte = ctypes.c_ubyte.from_address(addresses[key][part])
        byte.value ^= 1


def blocks_of(made: PlainReplica, places: Mapping[int, int]) -> dict[BlockKey, list[MemoryRef]]:
    """References to host places by the key of the KV page that belongs there."""
    agent, kv = made.runner.address.agent, made.runner.pools.named("kv")
    return {kv_key(made, page): kv.references(agent, place) for page, place in places.items()}
