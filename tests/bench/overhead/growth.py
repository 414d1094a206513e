# SPDX-License-Identifier: Apache-2.0
"""Whether memory grows with the number of operations."""

import gc
from collections.abc import Callable
from dataclasses import dataclass

import psutil
from hicache import HostMemory, page_hashes

from .transfers import PAGES, READ, WRITTEN, running_store

_WARM_UP = 1_000
_BYTES_LIMIT = 4 << 20
_OBJECTS_LIMIT = 1_000


@dataclass(frozen=True)
class Growth:
    """What is left after a number of operations, in bytes of the process and Python objects."""

    operations: int
    resident_bytes: int
    objects: int

    @property
    def kept(self) -> bool:
        """Whether it is less than one would see if each operation left anything behind."""
        return self.resident_bytes <= _BYTES_LIMIT and self.objects <= _OBJECTS_LIMIT


def measure(memory: HostMemory, operations: int, report: Callable[[int], None]) -> Growth:
    """Back up, look up and restore one page at a time, always new ones; the tier is full early.

    `report` is told how many operations are done.
    """
    source, target = memory.indices(WRITTEN, 1), memory.indices(READ, 1)
    process = psutil.Process()
    with running_store(memory) as store:

        def run(first: int, last: int) -> None:
            for number in range(first, last):
                page = page_hashes(number // 2, 1)
                if number % 2 == 0:
                    store.batch_set_v1(page, source)
                else:
                    store.batch_exists(page)
                    store.batch_get_v1(page, target)
                if number % PAGES == 0:
                    report(number)

        run(0, _WARM_UP)
        gc.collect()
        resident, objects = process.memory_info().rss, len(gc.get_objects())
        run(_WARM_UP, _WARM_UP + operations)
        gc.collect()
        return Growth(
            operations,
            process.memory_info().rss - resident,
            len(gc.get_objects()) - objects,
        )
