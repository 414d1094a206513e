# SPDX-License-Identifier: Apache-2.0
"""A native pool beside a managed one, for SGLang's accessors to be called on both."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from .model import PAGE_TOKENS, Model, make_pool

Layers = Callable[[Any], Sequence[torch.Tensor]]
"""From a pool of a model to the rows of one of its parts, layer by layer."""


@dataclass
class Pair:
    """A native pool and a model with a managed one, of which the first pages are leased."""

    native: Any
    model: Model
    page_count: int
    layers: Layers

    @property
    def pools(self) -> tuple[Any, Any]:
        return self.native, self.model.pool

    def rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The bytes of the leased pages of one layer: native and managed."""
        native, managed = (
            self.layers(pool)[layer].view(torch.uint8)[1 : self.page_count + 1]
            for pool in self.pools
        )
        return native, managed


@contextmanager
def paired(layers: Layers, page_count: int, **changes: Any) -> Iterator[Pair]:
    """Both pools are made with `changes`; the managed one is closed at the end."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ENABLE_KVCACHED", "0")
        native = make_pool(**changes)
    model = Model(make_pool(**changes), full_pages=page_count)
    model.allocator.full_attn_allocator.alloc(page_count * PAGE_TOKENS)
    yield Pair(native, model, page_count, layers)
    model.pools.close()
