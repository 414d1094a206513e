# SPDX-License-Identifier: Apache-2.0
"""One process's end of a contender: real host pages, and a way of moving them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from hicache import HostMemory

Address = Mapping[str, object]
"""What one end tells the other; values that can be pickled."""


class MoveError(RuntimeError):
    """Pages were not moved, or not found."""


class Side(ABC):
    """One end. Pages [0, most) of its memory are written from, the next `most` are read into.

    Args:
        memory: a host pool of at least 2 * most pages.
        most: the most pages that a call moves.
        peer: what the source told, on a target; empty on a source.
        settings: of the contender.

    Every call is of the first pages of its range, one for each key, and raises MoveError unless all
    of them were moved.
    """

    idle_seconds: float | None = None
    """How often `idle` is to be called while there is nothing to do; None for never."""

    def __init__(
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, object]
    ) -> None:
        self.memory = memory
        self.most = most
        self.peer = peer
        self.settings = settings

    @property
    def tier_bytes(self) -> int:
        """How much a store keeps: four times what a call moves."""
        return 4 * self.most * self.memory.page_bytes

    def address(self) -> Address:
        """What the other end has to know."""
        return {}

    def meet(self, target: Address) -> None:
        """On a source: what the target told."""
        del target

    def set(self, keys: Sequence[str]) -> None:
        """Store the written pages."""
        raise NotImplementedError

    @abstractmethod
    def get(self, keys: Sequence[str]) -> None:
        """Fill the read pages, here or, if a source writes to its target, there."""

    def exists(self, keys: Sequence[str]) -> int:
        """How many leading pages can be had."""
        raise NotImplementedError

    def forget(self, keys: Sequence[str]) -> None:
        """Let go of pages that are not asked for again; not timed."""
        del keys

    def idle(self) -> None:
        """Serve the other end."""
        return

    def close(self) -> None:
        """Stop."""
        return

    def fill(self, pages: int, seed: int) -> None:
        """Write contents that follow from the seed into the pages that are written from."""
        self.memory.page_contents(0, pages).copy_(contents(self.memory, pages, seed))

    def wipe(self, pages: int) -> None:
        """Zero the pages that are read into."""
        self.memory.page_contents(self.most, pages).zero_()

    def wrong_pages(self, pages: int, seed: int) -> int:
        """How many of the pages that were read into differ from what the seed stands for."""
        found = self.memory.page_contents(self.most, pages)
        return differing(found, contents(self.memory, pages, seed))


def contents(memory: HostMemory, pages: int, seed: int) -> torch.Tensor:
    """Bytes of `pages` pages that follow from the seed; shape as of HostMemory.page_contents."""
    drawn = np.random.Generator(np.random.SFC64(seed)).bytes(pages * memory.page_bytes)
    return torch.frombuffer(bytearray(drawn), dtype=torch.uint8).view(2, pages, -1)


def differing(found: torch.Tensor, wanted: torch.Tensor) -> int:
    """How many pages are not the same in every byte; shapes as of HostMemory.page_contents."""
    return int((found != wanted).any(dim=2).any(dim=0).sum())


def check_all(results: Sequence[bool], call: str) -> None:
    """Raise MoveError unless every page succeeded."""
    if not all(results) or not results:
        raise MoveError(f"{call}: {list(results).count(False)} of {len(results)} pages failed")
