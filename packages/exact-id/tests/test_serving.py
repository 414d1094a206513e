# SPDX-License-Identifier: Apache-2.0
"""Limits under SGLang's own scheduling code: admission, eviction, retraction and its checks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstrata.exact_id.limits import LimitStatus
from kvstrata.exact_id.ownership import SWA
from kvstrata_host.dsv4 import PAGE_TOKENS
from kvstrata_host.leases.engine import DamageError, Engine, Size
from kvstrata_host.leases.serving import Engines, check_memory, engines_in, in_process, pools_of

pytestmark = in_process

SIZE = Size(full_pages=128, swa_ratio=1.0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with engines_in(tmp_path) as engines:
        yield engines.make(SIZE)


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    with engines_in(tmp_path) as made:
        yield made


def submit(engine: Engine, name: int, pages: int, *, answer_tokens: int = 2) -> None:
    """A request that shares nothing with another, one token short of whole pages."""
    tokens = [1 + (name * 37 + each) % 1000 for each in range(pages * PAGE_TOKENS - 1)]
    engine.submit(f"request-{name}", tokens, answer_tokens=answer_tokens)


def test_what_a_limit_holds_back_is_not_lost(engine: Engine) -> None:
    pool = pools_of(engine)[SWA]
    pool.set_memory_limit(2 * pool.geometry.bundle_bytes, revision=1)
    assert engine.allocator.swa_available_size() < engine.swa_tokens

    engine.check()

    stats = engine.checker.pool_stats_observer.get_pool_stats()
    assert (stats.swa_num_used, stats.swa_available_size) == (0, engine.swa_tokens)
    assert engine.allocator.swa_available_size() < engine.swa_tokens


def test_a_page_that_is_lost_is_found_under_a_limit_too(engine: Engine) -> None:
    pool = pools_of(engine)[SWA]
    pool.set_memory_limit(2 * pool.geometry.bundle_bytes, revision=1)
    side = engine.allocator.swa_attn_allocator
    side.free_pages = side.free_pages[1:]

    with pytest.raises(ValueError, match="memory leak"):
        engine.check()


def test_a_limit_below_what_the_prefix_cache_holds_is_approached_by_eviction(
    engine: Engine,
) -> None:
    pool = pools_of(engine)[SWA]
    for name in range(10):
        submit(engine, name, 10)
    engine.finish()
    before = pool.mapped_bytes
    state = pool.set_memory_limit(3 * pool.geometry.bundle_bytes, revision=1)
    assert state.status is LimitStatus.DEFERRED

    # Together they want more than the limit allows: SGLang may not let them all in.
    for name in range(10, 16):
        submit(engine, name, 12)
    while engine.step():
        engine.check()
        check_memory(engine)

    assert not engine.waiting
    assert engine.aborted == 0
    assert pool.mapped_bytes < before


def test_requests_that_hold_more_than_a_new_limit_go_on(engines: Engines) -> None:
    engine, native = engines.make(SIZE), engines.make(SIZE, managed=False)
    for name in range(4):
        for each in (engine, native):
            submit(each, name, 6, answer_tokens=3)
    requests, wanted = list(engine.waiting), list(native.waiting)
    engine.step()
    assert len(engine.running.reqs) == 4
    pool = pools_of(engine)[SWA]
    state = pool.set_memory_limit(0, revision=1)
    assert state.status is LimitStatus.DEFERRED

    while engine.step():
        engine.check()
        check_memory(engine)
    native.finish()

    assert (engine.retracted, engine.aborted) == (0, 0)
    assert [each.output_ids for each in requests] == [each.output_ids for each in wanted]


def test_requests_for_which_no_memory_is_left_are_retracted_and_answer_later(
    engines: Engines,
) -> None:
    engine, native = engines.make(SIZE), engines.make(SIZE, managed=False)
    for name in range(8):
        for each in (engine, native):
            submit(each, name, 1, answer_tokens=3)
    requests, wanted = list(engine.waiting), list(native.waiting)
    engine.step()
    # With row 0, nine pages are on the one VMM page that the limit leaves; each request needs
    # another page for its last token, and five are there.
    pool = pools_of(engine)[SWA]
    state = pool.set_memory_limit(pool.mapped_bytes, revision=1)
    assert state.status is LimitStatus.APPLIED
    assert pool.mapped_bytes == pool.geometry.bundle_bytes

    while engine.step():
        engine.check()
        check_memory(engine)
    native.finish()

    assert engine.retracted > 0 == native.retracted
    assert engine.aborted == 0
    assert [each.output_ids for each in requests] == [each.output_ids for each in wanted]


def test_a_damaged_page_is_noticed(engine: Engine) -> None:
    submit(engine, 1, 2, answer_tokens=4)
    engine.step()
    engine.check()
    page = engine.live_ids["swa"][-1]
    engine.layers(SWA)[1][page, 0] += 1

    with pytest.raises(DamageError, match=r"layer 1 of swa .* request-1"):
        engine.check()
