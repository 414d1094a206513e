# SPDX-License-Identifier: Apache-2.0
"""The pools of a whole model, filled with long contexts, emptied again, and put under pressure."""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch

from kvstrata.exact_id.accounting import native_bytes
from kvstrata.exact_id.gating import Circumstances, kvcached_version
from kvstrata.exact_id.limits import segment_name
from kvstrata.exact_id.ownership import C4, INDEXER, SWA, claims
from kvstrata.exact_id.plan import Capacity, ModelShape, plan
from kvstrata_host import vmm
from kvstrata_host.dsv4 import PAGE_TOKENS
from kvstrata_host.vmm import Call

from . import kvctl
from .contents import Contents
from .miss import Miss
from .model import COMPRESSED, SPACES, Model, Size, make_model
from .savings import Course, Level, PoolSize, Savings

LAYERS = (0, 0, *((4, 128) * 20), 4)
"""43 layers, as many as SGLang's configuration of the model has, with both compressions in turn."""
CAPACITY = Capacity(full_tokens=524_288, swa_ratio=0.1, vmm_page_bytes=2 << 20)
"""SGLang's own share of the sliding window; VMM pages of kvcached's default size."""
_CONTEXT_PAGES = (16, 96)
_COURSE: tuple[tuple[Course, float], ...] = (
    ("growing", 0.1),
    ("growing", 0.5),
    ("growing", 0.9),
    ("ebbing", 0.5),
    ("ebbing", 0.1),
)
_LIMIT_AT = ("growing", 0.1)
"""Later the indexer has all of its few VMM pages, and a limit on what it has holds nothing back."""
_LITTLE_MEMORY_AT = ("ebbing", 0.5)
_BEYOND_PAGES = 64
_STRIDE_BYTES = 1024
"""Less than a page of the kernel's, so that all of a KV page becomes resident."""


@dataclass
class Context:
    """A request by its full page ids; the last one alone still has a window, the page `swa`."""

    number: int
    full: list[int]
    swa: int


@dataclass
class Fill:
    """The contexts on a model."""

    model: Model
    seed: int
    running: list[Context] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._contents = Contents(self.model, stride_bytes=_STRIDE_BYTES)
        self._number = 0
        state = vmm.state()
        self._native_driver_bytes = state.created_bytes - self.model.mapped_bytes
        self._start_committed_bytes = state.committed_bytes

    def play(self, tell: Callable[[str], None]) -> tuple[Savings, tuple[Miss, ...]]:
        """Fill and empty the pools; the misses come in between."""
        levels: list[Level] = []
        misses: list[Miss] = []
        for course, share in _COURSE:
            self._go_to(share)
            level = self._level(course, share)
            levels.append(level)
            tell(
                f"{course}, {share:.0%} of the pages in use: {level.managed_bytes >> 20} MiB mapped"
            )
            if (course, share) == _LIMIT_AT:
                limit = self._limit_on_the_indexer()
                misses.append(self._press("a kvctl limit on the indexer", limit, tell))
                self._go_to(share)
            if (course, share) == _LITTLE_MEMORY_AT:
                cause = "the device has no memory for all of it"
                misses.append(self._press(cause, self._little_memory(), tell))
                self._go_to(share)
        while self.running:
            self._end(self.running[-1])
        savings = Savings(
            layers=len(LAYERS),
            tokens=CAPACITY.full_tokens,
            sizes=_sizes(self.model),
            levels=tuple(levels),
            pages_compared=self._contents.pages_compared,
            pages_damaged=self._contents.pages_damaged,
        )
        return savings, tuple(misses)

    def _go_to(self, share: float) -> None:
        """Start or end contexts until this share of the full pages is in use."""
        wanted = int(share * self.model.size.full_pages)
        while (missing := wanted - self._live) >= _CONTEXT_PAGES[0]:
            most = min(missing, _CONTEXT_PAGES[1])
            full = self._allocate(self._draw.randint(_CONTEXT_PAGES[0], most))
            if full is None:
                raise RuntimeError(f"no pages at a load of {self._live} pages")
            self._start(full)
        while self._live > wanted:
            self._end(self._draw.choice(self.running))

    @property
    def _live(self) -> int:
        return sum(len(context.full) for context in self.running)

    def _allocate(self, pages: int) -> list[int] | None:
        """Full ids for a new context, of which only the last page gets a window."""
        lengths = torch.tensor([pages * PAGE_TOKENS])
        none, last = torch.zeros(1, dtype=torch.int64), torch.full((1,), -1, dtype=torch.int64)
        taken = self.model.allocator.alloc_extend_swa_tail(
            none, none, lengths, lengths, last, pages * PAGE_TOKENS, PAGE_TOKENS
        )
        if taken is None:
            return None
        ids: list[int] = (taken[::PAGE_TOKENS] // PAGE_TOKENS).tolist()
        return ids

    def _start(self, full: list[int]) -> Context:
        self._number += 1
        mapping = self.model.allocator.full_to_swa_index_mapping
        swa = int(mapping[full[-1] * PAGE_TOKENS]) // PAGE_TOKENS
        context = Context(self._number, full, swa)
        self._contents.fill(context.number, SWA, [swa])
        for name in COMPRESSED:
            self._contents.fill(context.number, name, full)
        self.running.append(context)
        return context

    def _end(self, context: Context) -> None:
        self._contents.compare(context.number, SWA, [context.swa])
        for name in COMPRESSED:
            self._contents.compare(context.number, name, context.full)
        allocator = self.model.allocator
        allocator.free_group_begin()
        allocator.free_full_segment(_tokens(context.full[:-1]), start_pos=0)
        allocator.free_segment(_tokens(context.full[-1:]), start_pos=0)
        allocator.free_group_end()
        self.running.remove(context)

    def _level(self, course: Course, share: float) -> Level:
        model, state = self.model, vmm.state()
        full = [page for context in self.running for page in context.full]
        books = dict.fromkeys(COMPRESSED, full) | {SWA: [each.swa for each in self.running]}
        return Level(
            course=course,
            live_share=share,
            live_pages={name: model.live_pages(name) for name in SPACES},
            mapped_bytes={name: model.pools[name].mapped_bytes for name in SPACES},
            expected_bytes={
                name: model.footprint(name).mapped_bytes(books[name]) for name in SPACES
            },
            driver_bytes=state.created_bytes - self._native_driver_bytes,
            committed_bytes=state.committed_bytes - self._start_committed_bytes,
        )

    # Pressure

    def _press(
        self, cause: str, obstacle: AbstractContextManager[None], tell: Callable[[str], None]
    ) -> Miss:
        miss = self._provoke(cause, obstacle)
        tell(f"{cause}: {miss.pages} pages {'missed' if miss.missed else 'were there'}")
        return miss

    def _provoke(self, cause: str, obstacle: AbstractContextManager[None]) -> Miss:
        """Ask for more than there is memory for, then end contexts until the same fits."""
        before = self.model.picture()
        created = _allocations()
        again: list[int] | None = None
        freed = 0
        with obstacle:
            pages = min(self._room_pages() + _BEYOND_PAGES, self._free_pages // 2)
            taken = self._allocate(pages)
            allocations = _allocations() - created
            is_untouched = self.model.picture() == before
            while taken is None and again is None and self.running:
                ended = max(self.running, key=lambda context: len(context.full))
                freed += len(ended.full)
                self._end(ended)
                again = self._allocate(pages)
        for ids in (taken, again):
            if ids is not None:
                self._end(self._start(ids))
        return Miss(
            cause=cause,
            pages=pages,
            missed=taken is None,
            is_untouched=is_untouched,
            allocations=allocations,
            pages_freed=freed,
            succeeded=again is not None,
        )

    @property
    def _free_pages(self) -> int:
        return self.model.size.full_pages - self._live

    def _room_pages(self) -> int:
        """For how many full pages SGLang is told that there is room."""
        return int(self.model.allocator.full_attn_allocator.available_size()) // PAGE_TOKENS

    def _little_memory(self) -> AbstractContextManager[None]:
        """The device has memory for one VMM page of C4 more, and for half of another."""
        spare = self.model.pools[C4].geometry.bundle_bytes * 3 // 2
        return vmm.budget(vmm.state().created_bytes + spare)

    @contextmanager
    def _limit_on_the_indexer(self) -> Iterator[None]:
        pool = self.model.pools[INDEXER]
        kvctl.set_limit(segment_name(INDEXER), pool.mapped_bytes)
        try:
            yield
        finally:
            kvctl.set_limit(segment_name(INDEXER), pool.geometry.virtual_bytes)


def _allocations() -> int:
    """How often the driver has allocated memory so far."""
    state = vmm.state()
    return state.calls[Call.CREATE] - state.failures[Call.CREATE]


def make_whole_model() -> Model:
    """The model of LAYERS for CAPACITY."""
    return make_model(Size(CAPACITY.full_pages, CAPACITY.swa_pages, LAYERS))


def _sizes(model: Model) -> tuple[PoolSize, ...]:
    seen = Circumstances(
        tp_size=1,
        pp_size=1,
        kvcached_version=kvcached_version(),
        contiguous_layout=False,
        device_type="cpu",
    )
    shape = ModelShape(LAYERS, 448, 64, 128, context_tokens=CAPACITY.full_tokens)
    made = {**native_bytes(model.kvcache)} | {
        pool.name: pool.geometry.native_bytes for pool in model.pools
    }
    return tuple(
        PoolSize(
            pool=planned.pool,
            is_managed=planned.is_managed,
            why=planned.why,
            layers=planned.layer_count,
            pages=planned.page_count,
            page_bytes=planned.page_bytes,
            planned_bytes=planned.native_bytes,
            made_bytes=made[planned.pool],
        )
        for planned in plan(shape, CAPACITY, seen, claims())
        if planned.page_count is not None
        and planned.page_bytes is not None
        and planned.native_bytes is not None
    )


def _tokens(pages: list[int]) -> torch.Tensor:
    """All tokens of pages, in their order."""
    firsts = torch.tensor(pages, dtype=torch.int64) * PAGE_TOKENS
    return (firsts[:, None] + torch.arange(PAGE_TOKENS)).reshape(-1)
