# SPDX-License-Identifier: Apache-2.0
"""Nothing is left behind by an operation, whichever way it ends."""

import gc
import itertools
from collections import Counter

import psutil
import pytest

from kvstrata.kvcr.staging import restore_staged

from .memory import key
from .runners import DRAM_PAGES, PAGES, Peer, Target

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

OPERATIONS = 2_000
"""Over 10,000 operations the same was seen once; fewer keep the test short."""

_SERIAL = itertools.count(1_000)


def operate(target: Target, peer: Peer, operations: int) -> Counter[str]:
    """Backups that evict, hits, misses, and restores from a peer in both modes, in turn."""
    runner, memory, ended = target.runner, target.memory, Counter[str]()
    for i in range(operations):
        page, at = next(_SERIAL), i % PAGES
        blocks = memory.blocks("target", {page: at})
        away = memory.blocks("target", {i % PAGES: at})
        missing = memory.blocks("target", {page: at, i % PAGES: (at + 1) % PAGES})
        match i % 5:
            case 0:
                ended["held"] += runner.deposit(blocks).count(True)
                ended["hit"] += runner.deliver(blocks, None).count(True)
            case 1:
                ended["miss"] += runner.deliver(blocks, None).count(False)
            case 2:
                hint = peer.hint([i % PAGES])
                runner.query([key(i % PAGES)], hint)
                ended["peer"] += runner.deliver(away, hint).count(True)
            case 3:
                hint = peer.hint([page, i % PAGES])
                ended["peer miss"] += runner.deliver(missing, hint).count(False)
            case _:
                ended["staged"] += restore_staged(runner, away, peer.hint([i % PAGES])).count(True)
    return ended


def retained(target: Target) -> int:
    gc.collect()
    return len(gc.get_objects())


def test_operations_leave_no_objects_and_no_memory_behind(target: Target, peer: Peer) -> None:
    process = psutil.Process()
    operate(target, peer, OPERATIONS // 4)
    objects, resident = retained(target), process.memory_info().rss
    ended = operate(target, peer, OPERATIONS)
    each = OPERATIONS // 5
    assert ended == dict.fromkeys(("held", "hit", "miss", "peer", "peer miss", "staged"), each)
    runner = target.runner
    assert not runner._pending
    assert not runner._uncertain
    core = runner._kvcr._core
    assert len(core._block_record_map) <= DRAM_PAGES
    assert not core._remote_fw_dram._request_hints
    assert not core._local_dram._public_claims
    assert retained(target) - objects < OPERATIONS // 10
    assert process.memory_info().rss - resident < OPERATIONS << 10


def test_the_count_of_objects_notices_one_that_is_kept_per_operation(target: Target) -> None:
    before = retained(target)
    kept = [[i] for i in range(OPERATIONS)]
    assert retained(target) - before >= len(kept)
