# SPDX-License-Identifier: Apache-2.0
"""Contenders with one fault each, for the tests: the benchmark has to notice."""

import os
from collections.abc import Sequence

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
