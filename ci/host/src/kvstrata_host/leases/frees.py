# SPDX-License-Identifier: Apache-2.0
"""The ways of SGLang's allocators to free the tokens of a request."""

from collections.abc import Callable

import torch

from .model import PAGE_TOKENS, Model

Free = Callable[[Model, torch.Tensor], None]


def _by_sides(model: Model, tokens: torch.Tensor) -> None:
    model.allocator.free_swa(tokens)
    model.allocator.free_full(tokens)


def _by_segments(model: Model, tokens: torch.Tensor) -> None:
    model.allocator.free_swa_segment(tokens, start_pos=0)
    model.allocator.free_full_segments([(tokens, 0)])


FREES: dict[str, Free] = {
    "free": lambda model, tokens: model.allocator.free(tokens),
    "free_segment": lambda model, tokens: model.allocator.free_segment(tokens, start_pos=0),
    "free_segments": lambda model, tokens: model.allocator.free_segments([(tokens, 0)]),
    "free_swa, free_full": _by_sides,
    "free_swa_segment, free_full_segments": _by_segments,
}


def check_free_gives_back(model: Model, page_count: int, free: Free, *, grouped: bool) -> None:
    """After `free`, or after the group that it is in, pools are as before the pages were taken."""
    idle = model.picture().pools
    tokens = model.without_kernels(page_count)
    assert tokens is not None
    busy = model.picture().pools
    assert busy != idle

    if grouped:
        model.allocator.free_group_begin()
    free(model, tokens)
    if grouped:
        assert model.picture().pools == busy, "nothing goes before the end of the group"
        tokens.fill_(PAGE_TOKENS)
        model.allocator.free_group_end()

    assert model.picture().pools == idle
