# SPDX-License-Identifier: Apache-2.0
"""A load that rises, goes on for a while and falls, through SGLang's own allocator."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from elastic.footprint import Footprint

from kvstrata_host.dsv4 import PAGE_TOKENS

from .model import Model, make_model
from .saving import Holding, Moment

_FULL_PAGES = 2048
_SWA_SHARE = 0.1
_REQUEST_PAGES = (4, 48)
_LOADS = (0.1, 0.5, 0.9)
_TURNOVER = 200
_SEED = 1


@dataclass
class _Load:
    """Requests of whole pages; of each one the last page alone is in the window."""

    model: Model
    draw: random.Random
    running: list[torch.Tensor] = field(default_factory=list)
    live_pages: int = 0

    @property
    def share(self) -> float:
        return self.live_pages / self.model.full_pages

    def start(self) -> None:
        pages = self.draw.randint(*_REQUEST_PAGES)
        tokens = self.model.start(pages)
        if pages > 1:
            self.model.allocator.free_swa_segment(tokens[:-PAGE_TOKENS], start_pos=0)
        self.running.append(tokens)
        self.live_pages += pages

    def end(self) -> None:
        tokens = self.running.pop(self.draw.randrange(len(self.running)))
        allocator = self.model.allocator
        allocator.free_group_begin()
        allocator.free_full_segment(tokens[:-PAGE_TOKENS], start_pos=0)
        allocator.free_segment(tokens[-PAGE_TOKENS:], start_pos=tokens.numel() - PAGE_TOKENS)
        allocator.free_group_end()
        self.live_pages -= tokens.numel() // PAGE_TOKENS


def measure() -> Iterator[Moment]:
    """At each load while it rises, after many requests came and went, and while it falls."""
    load = _Load(make_model(_FULL_PAGES, round(_SWA_SHARE * _FULL_PAGES)), random.Random(_SEED))
    for share in _LOADS:
        _reach(load, share)
        yield _moment(load, "rising")
    for _ in range(_TURNOVER):
        load.end()
        _reach(load, _LOADS[-1])
    yield _moment(load, "going on")
    for share in reversed(_LOADS[:-1]):
        while load.share > share:
            load.end()
        yield _moment(load, "falling")
    load.model.managed.close()


def _reach(load: _Load, share: float) -> None:
    while load.share < share and (1 - load.share) * _FULL_PAGES >= _REQUEST_PAGES[1]:
        load.start()


def _moment(load: _Load, history: str) -> Moment:
    from kvstrata.exact_id.transaction import IdSpace

    allocator = load.model.allocator
    free = {
        IdSpace.FULL: allocator.full_attn_allocator,
        IdSpace.SWA: allocator.swa_attn_allocator,
    }
    counts = {IdSpace.FULL: load.model.full_pages, IdSpace.SWA: load.model.swa_pages}
    holdings = []
    for space, side in free.items():
        live = set(range(1, counts[space] + 1)) - set(side.get_all_free_pages().tolist())
        for pool in load.model.managed.of(space):
            geometry = pool.geometry
            footprint = Footprint(
                geometry.page_bytes, geometry.vmm_page_bytes, geometry.layer_count
            )
            holdings.append(
                Holding(
                    pool=pool.name,
                    native_bytes=geometry.native_bytes,
                    mapped_bytes=pool.mapped_bytes,
                    expected_bytes=footprint.mapped_bytes(live),
                    live_bytes=len(live) * geometry.page_bytes * geometry.layer_count,
                )
            )
    return Moment(load.share, history, tuple(holdings))
