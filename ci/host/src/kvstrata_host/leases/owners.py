# SPDX-License-Identifier: Apache-2.0
"""Who owns the memory of a model's pools, and why."""

from typing import Any

from kvstrata.exact_id.discovery import managed_pools_of, owners_of
from kvstrata_host import vmm

from .model import make_pool


def make_watched_pool(**changes: Any) -> tuple[Any, bool]:
    """A pool made with `changes`, and whether kvcached made a driver call for it."""
    before = vmm.state().calls
    pool = make_pool(**changes)
    return pool, vmm.state().calls != before


def managed(pool: Any) -> list[str]:
    """The names of the managed pools, which are closed by it."""
    pools = managed_pools_of(pool)
    names = [each.name for each in pools or ()]
    if pools is not None:
        pools.close()
    return names


def reason(pool: Any, name: str) -> str:
    """Why the pool `name` is owned by whom it is."""
    (why,) = (owner.why for owner in owners_of(pool) if owner.pool == name)
    return why
