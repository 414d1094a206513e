# SPDX-License-Identifier: Apache-2.0
"""What is written into pages, and whether it is still there."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .model import Model


@dataclass
class Contents:
    """Fills pages with a byte of their owner's, another one in each layer of each pool.

    Of `stride_bytes` the first one is written, and compared.
    """

    model: Model
    stride_bytes: int = 1
    pages_compared: int = 0
    pages_damaged: int = 0

    def fill(self, owner: int, name: str, ids: Sequence[int]) -> None:
        """Write pages of the pool `name`."""
        for layer, rows in enumerate(self._rows(name)):
            rows[list(ids)] = _mark(owner, name, layer)

    def compare(self, owner: int, name: str, ids: Sequence[int]) -> int:
        """Count the pages, and return how many do not hold all that was written."""
        kept = torch.ones(len(ids), dtype=torch.bool)
        for layer, rows in enumerate(self._rows(name)):
            kept &= (rows[list(ids)] == _mark(owner, name, layer)).all(dim=1)
        damaged = int((~kept).sum())
        self.pages_compared += len(ids)
        self.pages_damaged += damaged
        return damaged

    def _rows(self, name: str) -> list[torch.Tensor]:
        return [rows[:, :: self.stride_bytes] for rows in self.model.rows[name]]


def _mark(owner: int, name: str, layer: int) -> int:
    return 1 + (7 * owner + layer + len(name)) % 255
