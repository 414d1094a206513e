# SPDX-License-Identifier: Apache-2.0
"""Contenders for the tests: most with one fault, which the benchmark has to notice."""

import os
from collections.abc import Sequence

import psutil
from stores.copies import Memcpy


class MovesNothing(Memcpy):
    """Says that it filled the pages."""

    def get(self, keys: Sequence[str]) -> None:
        return


class FlipsOneBit(Memcpy):
    """Is right but for one bit of the last page."""

    def get(self, keys: Sequence[str]) -> None:
        super().get(keys)
        self.memory.page_contents(self.most, len(keys))[-1, -1, -1] ^= 1


class KeepsTheFirst(Memcpy):
    """Holds on to what it was given first, whatever is stored under other keys."""

    def set(self, keys: Sequence[str]) -> None:
        if not self._held:
            super().set(keys)
        self._held = keys


class FindsNothing(Memcpy):
    """Does not know what it has."""

    def exists(self, keys: Sequence[str]) -> int:
        return 0


class Ends(Memcpy):
    """Takes its process down."""

    def get(self, keys: Sequence[str]) -> None:
        os._exit(7)


class Tells(Memcpy):
    """Has no fault, and says what it stores."""

    def set(self, keys: Sequence[str]) -> None:
        print(keys[0], flush=True)
        super().set(keys)


class Alone(Memcpy):
    """Has no fault, and wants the cores for itself."""

    def get(self, keys: Sequence[str]) -> None:
        for other in psutil.Process(os.getppid()).children():
            if other.pid != os.getpid() and other.status() != psutil.STATUS_STOPPED:
                raise RuntimeError("another contender runs")
        super().get(keys)
