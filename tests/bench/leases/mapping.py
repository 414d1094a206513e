# SPDX-License-Identifier: Apache-2.0
"""Memory that comes and goes with leases, against kvcached's own calls for the same pages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import numpy as np
import torch
from kvcached import vmm_ops
from paired import Ratio, in_turn, seconds

from kvstrata.exact_id.backing import Backing
from kvstrata.exact_id.geometry import Ids, PoolGeometry, VmmPages
from kvstrata.exact_id.transaction import IdSpace, ManagedPools

from .bookkeeping import LAYERS, SWA_PAGE_BYTES, VMM_PAGE_BYTES

_POOL = "bench"
_LIMIT = 1.1
_DEEP_LAYERS = 32
_transactions = count()


class MappingError(RuntimeError):
    """Other pages were mapped than was meant, or kvcached refused."""


def measure(rounds: int) -> tuple[Ratio, Ratio]:
    """Map and unmap alone; and a lease and a release with everything that belongs to them."""
    return _backing_alone(rounds, vmm_pages=32), _whole_leases(rounds, vmm_pages=32)


def _backing_alone(rounds: int, *, vmm_pages: int) -> Ratio:
    with _pools(LAYERS) as pools:
        backing = pools[_POOL].backing
        pages = np.arange(1, 1 + vmm_pages)

        def map_and_unmap() -> None:
            backing.map(pages)
            backing.unmap(pages)

        times = _against_kvcached(rounds, map_and_unmap, backing, pages)
    return Ratio(
        f"map and unmap of {vmm_pages} VMM pages of {LAYERS} layers",
        *times,
        peer="kvcached's own calls for these pages",
        limit=_LIMIT,
    )


def _whole_leases(rounds: int, *, vmm_pages: int) -> Ratio:
    with _pools(_DEEP_LAYERS) as pools:
        pool = pools[_POOL]
        ids = _ids_on(pool.geometry, vmm_pages)
        pages = np.unique(pool.geometry.vmm_pages_of(ids))
        before = pool.mapped_bytes
        leases = {IdSpace.SWA: ids.tolist()}

        def lease_and_release() -> None:
            pools.lease(leases)
            pools.release(leases)

        pools.lease(leases)
        if pool.mapped_bytes - before != vmm_pages * pool.geometry.bundle_bytes:
            raise MappingError(f"{len(ids)} ids did not map {vmm_pages} VMM pages")
        pools.release(leases)
        times = _against_kvcached(rounds, lease_and_release, pool.backing, pages)
    return Ratio(
        f"lease and release of {len(ids)} ids on {vmm_pages} VMM pages of {_DEEP_LAYERS} layers, "
        "memory included",
        *times,
        peer="kvcached's own calls for these pages",
        limit=_LIMIT,
    )


@contextmanager
def _pools(layers: int) -> Iterator[ManagedPools]:
    pools = ManagedPools("cpu")
    pools.select(_POOL, IdSpace.SWA)
    pools.make(_POOL, PoolGeometry(1024, SWA_PAGE_BYTES, layers, VMM_PAGE_BYTES), torch.uint8)
    pools.open()
    try:
        yield pools
    finally:
        pools.close()


def _against_kvcached(
    rounds: int, work: Callable[[], None], backing: Backing, pages: VmmPages
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of `work` and of kvcached's calls alone, on the same pages of the same tensors."""
    offsets = (pages * VMM_PAGE_BYTES).tolist()
    group_id, before = backing.group_id, backing.mapped_count

    def map_and_unmap() -> None:
        succeeded, _ = vmm_ops.map_to_kv_tensors_with_result(offsets, group_id)
        name = f"bench-{next(_transactions)}"
        if not (
            succeeded
            and vmm_ops.prepare_unmap_from_kv_tensors(offsets, name, group_id)
            and vmm_ops.commit_unmap_from_kv_tensors(name, group_id)
        ):
            raise MappingError("kvcached refused to map or to unmap")

    times = in_turn(rounds, lambda _: seconds(work), lambda _: seconds(map_and_unmap))
    if backing.mapped_count != before:
        raise MappingError("not everything was unmapped again")
    return times


def _ids_on(geometry: PoolGeometry, vmm_pages: int) -> Ids:
    """The ids that lie on the VMM pages 1 to `vmm_pages` and on no other."""
    first = -(-geometry.vmm_page_bytes // geometry.page_bytes)
    last = (1 + vmm_pages) * geometry.vmm_page_bytes // geometry.page_bytes
    return np.arange(first, last)
