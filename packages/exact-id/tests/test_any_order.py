# SPDX-License-Identifier: Apache-2.0
"""Whatever happens in whatever order: real allocators and pools against a plain model of them."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import ceil

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvstrata.exact_id import ownership
from kvstrata.exact_id.geometry import PoolGeometry
from kvstrata.exact_id.limits import LimitStatus
from kvstrata.exact_id.ownership import C4, SWA, Claim
from kvstrata.exact_id.transaction import IdSpace
from kvstrata_host import vmm
from kvstrata_host.vmm import Call

from .dsv4 import PAGE_TOKENS, Model, Picture, make_pool

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]

STEPS = 10_000
STEPS_OF_A_RUN = 100
FULL_PAGES = 100
SWA_PAGES = 60
# Triton's interpreter takes tens of milliseconds for an extension, and other steps take about one.
RARE = st.integers(0, 39).map(lambda drawn: drawn == 0)


@dataclass
class Side:
    """What one allocator and the pool that follows it must look like."""

    geometry: PoolGeometry
    free: list[int]
    leased: set[int] = field(default_factory=set)
    overdue: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    limit: int = 0

    def __post_init__(self) -> None:
        self.limit = self.geometry.vmm_page_count

    def vmm_pages(self, ids: set[int] | list[int]) -> set[int]:
        """By the definition: the VMM pages of the first to the last byte of each id."""
        size, unit = self.geometry.page_bytes, self.geometry.vmm_page_bytes
        return {
            page
            for each in ids
            for page in range(each * size // unit, ((each + 1) * size - 1) // unit + 1)
        }

    @property
    def held(self) -> set[int]:
        return self.vmm_pages(self.leased | {0})

    @property
    def mapped(self) -> set[int]:
        return self.held | self.overdue

    def new_pages(self, ids: list[int]) -> set[int]:
        return self.vmm_pages(ids) - self.mapped

    def has_room_for(self, ids: list[int]) -> bool:
        new = self.new_pages(ids)
        return not new or len(self.mapped) + len(new) <= self.limit

    @property
    def leasable(self) -> int:
        """How many free ids, from the first one on, have memory or may get some."""
        room = max(0, self.limit - len(self.mapped))
        for count in range(len(self.free)):
            if len(self.new_pages(self.free[: count + 1])) > room:
                return count
        return len(self.free)

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        self.leased |= set(taken)
        self.overdue -= self.vmm_pages(taken)
        return taken

    def give(self, ids: list[int]) -> set[int]:
        """Returns the VMM pages that are to be unmapped."""
        before = self.mapped
        self.leased -= set(ids)
        self.free = ids + self.free
        gone = before - self.held
        # Overdue pages are tried again whenever something is unmapped.
        if gone - self.overdue:
            self.overdue = set()
            return gone
        return set()

    def lose(self, pages: set[int]) -> None:
        self.lost |= pages
        self.free = [each for each in self.free if not self.vmm_pages([each]) & self.lost]


@dataclass
class Request:
    """A request by its pages: full ids, and the SWA id of each page that still has a window."""

    full: list[int]
    swa: list[int]
    retired: int = 0


class AnyOrder(RuleBasedStateMachine):
    steps = 0

    @initialize()
    def make(self) -> None:
        pool = make_pool(
            swa_size=SWA_PAGES * PAGE_TOKENS,
            c4_size=FULL_PAGES * PAGE_TOKENS // 4,
            c128_size=FULL_PAGES * PAGE_TOKENS // 128,
            compression_ratios=[4, 0],
        )
        self.model = Model(pool, full_pages=FULL_PAGES, swa_pages=SWA_PAGES)
        self.pools = self.model.pools
        self.full = Side(self.pools[C4].geometry, list(range(1, FULL_PAGES + 1)))
        self.swa = Side(self.pools[SWA].geometry, list(range(1, SWA_PAGES + 1)))
        self.sides = {C4: self.full, SWA: self.swa}
        self.buffers = {C4: pool.c4_kv_pool.kv_buffer, SWA: pool.swa_kv_pool.kv_buffer}
        self.requests: list[Request] = []
        self.content: dict[str, dict[int, int]] = {C4: {}, SWA: {}}
        self.serial = 0
        self.revision = 0
        self.base_bytes = vmm.state().created_bytes - self.mapped_bytes()

    def teardown(self) -> None:
        if hasattr(self, "pools"):
            self.pools.close()

    # Steps

    @rule(count=st.integers(1, 24), real=RARE, data=st.data())
    def start(self, count: int, real: bool, data: st.DataObject) -> None:
        self.allocate(count, data, request=None, real=real)

    @precondition(lambda self: self.alive)
    @rule(count=st.integers(1, 8), real=RARE, data=st.data())
    def extend(self, count: int, real: bool, data: st.DataObject) -> None:
        self.allocate(count, data, request=data.draw(st.sampled_from(self.alive)), real=real)

    @precondition(lambda self: self.alive)
    @rule(rare=RARE, data=st.data())
    def decode(self, rare: bool, data: st.DataObject) -> None:
        if rare:
            request = data.draw(st.sampled_from(self.alive))
            self.allocate(1, data, request=request, real=True, decoding=True)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        count = data.draw(st.integers(0, len(request.swa) - request.retired))
        pages = slice(request.retired, request.retired + count)
        if count:
            with self.failing_unmap(data, {SWA: request.swa[pages]}):
                self.model.allocator.free_swa_segment(tokens(request.full[pages]), start_pos=0)
            request.retired += count

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.requests))
        self.requests.remove(request)
        self.free_retired(request, data)
        alive = request.full[request.retired :]
        as_a_set = data.draw(st.booleans())
        swa = request.swa[request.retired :]
        ids = {C4: sorted(alive), SWA: sorted(swa)} if as_a_set else {C4: alive, SWA: swa}
        if alive:
            with self.failing_unmap(data, ids):
                if as_a_set:
                    self.model.allocator.free(tokens(alive))
                else:
                    self.model.allocator.free_segment(tokens(alive), start_pos=0)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def finish_several_in_a_group(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.requests), unique_by=id))
        allocator = self.model.allocator
        before = self.held()
        allocator.free_group_begin()
        full: list[int] = []
        swa: list[int] = []
        for request in chosen:
            self.requests.remove(request)
            for of_full, given in (
                (True, request.full[: request.retired]),
                (False, request.full[request.retired :]),
            ):
                given_tokens = tokens(given)
                if of_full:
                    allocator.free_full_segment(given_tokens, start_pos=0)
                else:
                    allocator.free_segment(given_tokens, start_pos=0)
                given_tokens.zero_()
                full += given
            swa += request.swa[request.retired :]
        assert self.held() == before, "nothing goes before the end of the group"
        with self.failing_unmap(data, {SWA: swa, C4: full}):
            allocator.free_group_end()

    @rule(grouped=st.booleans(), rare=st.integers(0, 9))
    def clear(self, grouped: bool, rare: int) -> None:
        if rare:
            return
        if grouped:
            self.model.allocator.free_group_begin()
            for request in self.requests:
                self.model.allocator.free_segment(
                    tokens(request.full[request.retired :]), start_pos=0
                )
        self.model.allocator.clear()
        self.requests.clear()
        for side, last in ((self.full, FULL_PAGES), (self.swa, SWA_PAGES)):
            if side.held - self.vmm_pages_of_row_0(side):
                side.overdue = set()
            side.leased = set()
            side.free = list(range(1, last + 1))
            side.lose(set())
        self.content = {C4: {}, SWA: {}}

    @rule(name=st.sampled_from([C4, SWA]), data=st.data())
    def limit(self, name: str, data: st.DataObject) -> None:
        """A shrink, also below what is in use, or a regrow."""
        side, pool = self.sides[name], self.pools[name]
        count = data.draw(
            st.sampled_from([side.geometry.vmm_page_count, *range(side.geometry.vmm_page_count)])
        )
        self.revision += 1
        state = pool.set_memory_limit(count * side.geometry.bundle_bytes, revision=self.revision)
        side.limit = max(count, len(self.vmm_pages_of_row_0(side)))
        within = len(side.mapped) <= side.limit
        assert state.status is (LimitStatus.APPLIED if within else LimitStatus.DEFERRED)

    # What every step must keep

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        type(self).steps += 1
        allocator = self.model.allocator
        assert allocator.full_attn_allocator.free_pages.tolist() == self.full.free
        assert allocator.swa_attn_allocator.free_pages.tolist() == self.swa.free
        assert allocator.full_available_size() == self.full.leasable * PAGE_TOKENS
        assert allocator.swa_available_size() == self.swa.leasable * PAGE_TOKENS
        for name, side in self.sides.items():
            pool = self.pools[name]
            assert pool.ledger.leased_ids.tolist() == sorted(side.leased)
            holders = Counter(page for each in side.leased | {0} for page in side.vmm_pages([each]))
            assert pool.ledger.holders.tolist() == [
                holders[page] for page in range(side.geometry.vmm_page_count)
            ]
            assert pool.backing.mapped_pages.tolist() == sorted(side.mapped)
            assert pool.mapped_bytes == len(side.mapped) * side.geometry.bundle_bytes
            assert pool.backing.quarantined_pages.tolist() == sorted(side.lost)
            assert pool.limit_state.effective_bytes == side.limit * side.geometry.bundle_bytes
            self.check_content(name)
        self.check_mapping()
        if not self.full.lost and not self.swa.lost:
            assert vmm.state().created_bytes == self.base_bytes + self.mapped_bytes()

    def check_content(self, name: str) -> None:
        """The first and the last byte of every leased row of every layer."""
        ids = torch.tensor(sorted(self.content[name]), dtype=torch.int64)
        wanted = torch.tensor([self.content[name][each] for each in ids.tolist()])
        for number, layer in enumerate(self.buffers[name]):
            for column in (0, -1):
                assert torch.equal(layer[ids, column].long(), (wanted + number) % 256)

    def check_mapping(self) -> None:
        mapping = self.model.allocator.full_to_swa_index_mapping[:-1].view(-1, PAGE_TOKENS)
        wanted = torch.zeros(FULL_PAGES + 1, dtype=torch.int64)
        for request in self.requests:
            for full, swa in list(zip(request.full, request.swa, strict=True))[request.retired :]:
                wanted[full] = swa * PAGE_TOKENS
        assert torch.equal(mapping[:, 0], wanted)

    # The parts of a step

    @property
    def alive(self) -> list[Request]:
        """The requests whose last page still has a window."""
        return [each for each in self.requests if each.retired < len(each.full)]

    def allocate(
        self,
        count: int,
        data: st.DataObject,
        *,
        request: Request | None,
        real: bool,
        decoding: bool = False,
    ) -> None:
        """Take `count` pages, or miss for want of ids, room or, as injected, of memory."""
        has_ids = count <= min(len(self.full.free), len(self.swa.free))
        ids = {C4: self.full.free[:count], SWA: self.swa.free[:count]}
        possible = has_ids and all(
            side.has_room_for(ids[name]) for name, side in self.sides.items()
        )
        lost = self.injected(data, ids) if possible else None
        before = self.observed()
        with ExitStack() as failures:
            if lost is not None:
                for call, nth in lost.calls:
                    failures.enter_context(vmm.fail_at(call, nth))
            taken = self.take(count, request, real=real, decoding=decoding)
        if not possible or lost is not None:
            assert taken is None
            if lost is not None and lost.pages:
                self.sides[lost.name].lose(lost.pages)
            else:
                assert self.observed() == before
            return
        assert taken is not None
        got = {C4: self.full.take(count), SWA: self.swa.take(count)}
        assert torch.unique(taken // PAGE_TOKENS).tolist() == sorted(got[C4])
        if request is None:
            self.requests.append(Request(got[C4], got[SWA]))
        else:
            request.full += got[C4]
            request.swa += got[SWA]
        for name, new in got.items():
            self.write(name, new)

    def take(
        self, count: int, request: Request | None, *, real: bool, decoding: bool
    ) -> torch.Tensor | None:
        """Through SGLang's kernels, or without them by the same transaction."""
        if not real:
            return self.model.without_kernels(count)
        prefix = tokens(request.full) if request else torch.empty(0, dtype=torch.int64)
        if decoding:
            return self.model.decode(prefix)
        return self.model.extend(prefix, prefix.numel() + count * PAGE_TOKENS)

    def injected(self, data: st.DataObject, ids: dict[str, list[int]]) -> Injected | None:
        """A failure of the driver that this allocation will meet, if one is drawn."""
        if data.draw(st.integers(0, 3)):
            return None
        creates = {
            name: len(self.sides[name].new_pages(ids[name])) * self.sides[name].geometry.layer_count
            for name in (SWA, C4)
        }
        total = sum(creates.values())
        if not total:
            return None
        nth = data.draw(st.integers(1, total))
        # Where the second layer of the first SWA page misses, its first layer can be lost.
        if nth == 2 <= creates[SWA] and data.draw(st.booleans()):
            calls = ((Call.CREATE, 2), (Call.UNMAP, 3))
            return Injected(calls, SWA, self.swa.new_pages(ids[SWA]))
        return Injected(((Call.CREATE, nth),), SWA, set())

    def failing_unmap(self, data: st.DataObject, ids: dict[str, list[int]]) -> ExitStack:
        """Gives `ids` back in the model; the driver may refuse the first unmap of the last pool."""
        stack = ExitStack()
        gone = {name: self.sides[name].give(given) for name, given in ids.items() if given}
        for name, given in ids.items():
            for each in given:
                del self.content[name][each]
        unmapped = [name for name in (SWA, C4) if gone.get(name)]
        if len(unmapped) == 1 and not data.draw(st.integers(0, 3)):
            (name,) = unmapped
            stack.enter_context(vmm.fail_at(Call.UNMAP))
            self.sides[name].overdue = gone[name]
        return stack

    def free_retired(self, request: Request, data: st.DataObject) -> None:
        pages = request.full[: request.retired]
        if pages:
            with self.failing_unmap(data, {C4: pages}):
                self.model.allocator.free_full_segment(tokens(pages), start_pos=0)

    def write(self, name: str, ids: list[int]) -> None:
        where = torch.tensor(ids, dtype=torch.int64)
        self.serial += 1
        for number, layer in enumerate(self.buffers[name]):
            for column in (0, -1):
                layer[where, column] = (self.serial + number) % 256
        self.content[name].update(dict.fromkeys(ids, self.serial % 256))

    def observed(self) -> Picture:
        return self.model.picture()

    def held(self) -> object:
        """All but the mapping to SWA ids, which SGLang clears at once."""
        return replace(self.observed(), mapping=[])

    def mapped_bytes(self) -> int:
        return sum(pool.mapped_bytes for pool in self.pools)

    def vmm_pages_of_row_0(self, side: Side) -> set[int]:
        return side.vmm_pages([0])


@dataclass(frozen=True)
class Injected:
    """Calls that fail, and the VMM pages of a pool that are lost by it."""

    calls: tuple[tuple[Call, int], ...]
    name: str
    pages: set[int]


def tokens(page_ids: list[int]) -> torch.Tensor:
    """All tokens of the pages, in their order."""
    ids = torch.tensor(page_ids, dtype=torch.int64)
    return (ids[:, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS)).reshape(-1)


@pytest.fixture
def c4_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ownership._claims, C4, Claim(C4, IdSpace.FULL, "the test"))


@pytest.mark.timeout(600)
def test_allocators_and_memory_follow_the_model_in_any_order(c4_is_claimed: None) -> None:
    wanted = int(os.environ.get("EXACT_ID_STEPS", STEPS))
    AnyOrder.steps = 0
    runs = 0
    while AnyOrder.steps < wanted:
        run_state_machine_as_test(
            AnyOrder,
            settings=settings(
                max_examples=ceil((wanted - AnyOrder.steps) / STEPS_OF_A_RUN),
                stateful_step_count=STEPS_OF_A_RUN,
                deadline=None,
                database=None,
                # Shrinking takes minutes; the steps of a failure are short enough to read.
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
        runs += 1
        assert runs < 20, "the runs are far shorter than asked for"

    assert AnyOrder.steps >= wanted
