# SPDX-License-Identifier: Apache-2.0
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstrata.exact_id.errors import AllocationMiss
from kvstrata.exact_id.geometry import PoolGeometry
from kvstrata.exact_id.limits import (
    LimitStatus,
    MemoryLimit,
    Segment,
    free_segment_name,
    segment_name,
)
from kvstrata.exact_id.pool import ManagedPool
from kvstrata.exact_id.transaction import IdSpace, ManagedPools

PAGE = 2 << 20
GEOMETRY = PoolGeometry(page_count=20, page_bytes=PAGE, layer_count=2, vmm_page_bytes=PAGE)
BUNDLE = GEOMETRY.bundle_bytes

MakePools = Callable[..., ManagedPools]


def swa(*ids: int) -> dict[IdSpace, list[int]]:
    return {IdSpace.SWA: list(ids)}


def status_of(pool: ManagedPool) -> LimitStatus:
    return pool.limit_state.status


def kvctl(*arguments: str) -> str:
    """What kvcached's own tool prints."""
    command = [sys.executable, "-m", "kvcached.cli.kvctl", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_limit_counts_whole_vmm_pages_of_all_layers() -> None:
    limit = MemoryLimit(GEOMETRY)

    state = limit.set(5 * BUNDLE + BUNDLE - 1, revision=1, mapped_bytes=0)

    assert (state.limit_bytes, state.effective_bytes) == (6 * BUNDLE - 1, 5 * BUNDLE)
    assert limit.page_count == 5


def test_row_0_is_above_every_limit_and_the_pool_is_the_upper_bound() -> None:
    limit = MemoryLimit(GEOMETRY)

    assert limit.set(0, revision=1, mapped_bytes=0).effective_bytes == BUNDLE
    assert limit.set(1 << 60, revision=2, mapped_bytes=0).effective_bytes == GEOMETRY.virtual_bytes


REQUESTS = {
    "later": (3, 4 * BUNDLE, LimitStatus.APPLIED),
    "later, below what is mapped": (3, BUNDLE, LimitStatus.DEFERRED),
    "the same again": (2, 6 * BUNDLE, LimitStatus.APPLIED),
    "older": (1, 4 * BUNDLE, LimitStatus.STALE),
    "another with the same revision": (2, 4 * BUNDLE, LimitStatus.CONFLICT),
}


@pytest.mark.parametrize(("revision", "limit_bytes", "status"), REQUESTS.values(), ids=REQUESTS)
def test_a_request_is_applied_deferred_stale_or_in_conflict(
    revision: int, limit_bytes: int, status: LimitStatus
) -> None:
    limit = MemoryLimit(GEOMETRY)
    limit.set(6 * BUNDLE, revision=2, mapped_bytes=0)

    state = limit.set(limit_bytes, revision=revision, mapped_bytes=2 * BUNDLE)

    assert state.status is status
    in_force = status in (LimitStatus.APPLIED, LimitStatus.DEFERRED)
    assert limit.page_count == (limit_bytes // BUNDLE if in_force else 6)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30))))
def test_the_limit_in_force_is_the_first_one_of_the_highest_revision(
    requests: list[tuple[int, int]],
) -> None:
    limit = MemoryLimit(GEOMETRY)
    expected = (0, GEOMETRY.virtual_bytes)
    for revision, pages in requests:
        limit.set(pages * BUNDLE, revision=revision, mapped_bytes=0)
        if revision > expected[0]:
            expected = (revision, pages * BUNDLE)

    state = limit.state(0)

    assert (state.revision, state.limit_bytes) == expected


@pytest.mark.parametrize(("limit_bytes", "revision"), [(-1, 0), (0, -1)])
def test_negative_requests_are_refused(limit_bytes: int, revision: int) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        MemoryLimit(GEOMETRY).set(limit_bytes, revision=revision, mapped_bytes=0)


def test_a_shrink_below_use_is_deferred_until_enough_was_freed(made_pools: MakePools) -> None:
    pools = made_pools(swa=GEOMETRY)
    pool = pools["swa"]
    pools.lease(swa(1, 2, 3, 4))

    assert pool.set_memory_limit(3 * BUNDLE, revision=1).status is LimitStatus.DEFERRED
    with pytest.raises(AllocationMiss):
        pools.lease(swa(5))
    pools.release(swa(1))
    assert status_of(pool) is LimitStatus.DEFERRED
    pools.release(swa(2))
    assert status_of(pool) is LimitStatus.APPLIED
    with pytest.raises(AllocationMiss):
        pools.lease(swa(5))
    pools.release(swa(3))
    pools.lease(swa(5))
    assert pool.mapped_bytes == 3 * BUNDLE


def test_a_pool_grows_again_up_to_where_it_started(made_pools: MakePools) -> None:
    pools = made_pools(swa=GEOMETRY)
    pool = pools["swa"]
    start = pool.limit_state.limit_bytes
    pool.set_memory_limit(0, revision=1)
    with pytest.raises(AllocationMiss):
        pools.lease(swa(1))

    assert pool.set_memory_limit(start, revision=2).status is LimitStatus.APPLIED

    pools.lease(swa(*range(1, 21)))
    assert pool.mapped_bytes == GEOMETRY.virtual_bytes


def test_kvctl_lists_each_pool_and_what_it_maps(made_pools: MakePools) -> None:
    pools = made_pools(swa=GEOMETRY, c4=GEOMETRY)
    pools.lease(swa(1, 2))

    listing = kvctl("list", "--json", *(str(pool.segment_name) for pool in pools))

    assert json.loads(listing) == [
        {
            "ipc": pools["swa"].segment_name,
            "limit_bytes": GEOMETRY.virtual_bytes,
            "used_bytes": 3 * BUNDLE,
        },
        {
            "ipc": pools["c4"].segment_name,
            "limit_bytes": GEOMETRY.virtual_bytes,
            "used_bytes": BUNDLE,
        },
    ]


def test_kvtop_finds_each_pool(made_pools: MakePools) -> None:
    from kvcached.cli.kvtop import _detect_kvcache_ipc_names

    pools = made_pools(swa=GEOMETRY, c4=GEOMETRY)

    assert {pools["swa"].segment_name, pools["c4"].segment_name} <= set(_detect_kvcache_ipc_names())


def test_a_limit_that_kvctl_sets_is_deferred_then_applied_then_lifted(
    made_pools: MakePools,
) -> None:
    pools = made_pools(swa=GEOMETRY)
    pool = pools["swa"]
    pools.lease(swa(1, 2, 3))
    pool.set_memory_limit(8 * BUNDLE, revision=7)

    kvctl("limit", str(pool.segment_name), str(3 * BUNDLE))
    assert status_of(pool) is LimitStatus.DEFERRED
    assert pool.limit_state.revision == 8
    with pytest.raises(AllocationMiss):
        pools.lease(swa(4))
    pools.release(swa(3))
    assert status_of(pool) is LimitStatus.APPLIED
    kvctl("limit", str(pool.segment_name), str(GEOMETRY.virtual_bytes))
    pools.lease(swa(3, 4))
    assert pool.mapped_bytes == 5 * BUNDLE


def test_a_second_model_of_a_process_has_other_names(kvcached: None) -> None:
    first = Segment(free_segment_name("twice"), BUNDLE)
    second = Segment(free_segment_name("twice"), BUNDLE)

    assert first.name == segment_name("twice")
    assert second.name == f"{first.name}_2"
    first.close()
    assert free_segment_name("twice") == first.name
    second.close()


def test_the_segment_goes_with_the_pool_and_not_with_its_successor(kvcached: None) -> None:
    path = Path("/dev/shm") / segment_name("passing")
    first = Segment(segment_name("passing"), BUNDLE)
    path.unlink()
    second = Segment(segment_name("passing"), BUNDLE)

    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()


def test_a_segment_takes_no_signal_handler_from_the_server(kvcached: None) -> None:
    names: Iterable[signal.Signals] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(each) for each in names]
    segment = Segment(segment_name("signals"), BUNDLE)

    assert [signal.getsignal(each) for each in names] == before
    segment.close()
