# SPDX-License-Identifier: Apache-2.0
"""Whatever happens in whatever order: real allocators and pools against a plain model of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

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

from kvstrata.exact_id.limits import LimitStatus
from kvstrata.exact_id.ownership import C4, INDEXER, SWA
from kvstrata.exact_id.transaction import IdSpace
from kvstrata_host import vmm
from kvstrata_host.vmm import Call

from .model import PAGE_TOKENS, Model, Picture, make_pool
from .model import tokens_of as tokens
from .reference import Request, Side, Space

STEPS_OF_A_RUN = 100
FULL_PAGES = 100
SWA_PAGES = 60
# Triton's interpreter takes tens of milliseconds for an extension, and other steps take about one.
RARE = st.integers(0, 39).map(lambda drawn: drawn == 0)


class AnyOrder(RuleBasedStateMachine):
    """`steps` counts over all runs; `managed` is the pools that the model finds managed."""

    steps: ClassVar[int] = 0
    managed: ClassVar[tuple[str, ...]] = ()

    @initialize()
    def make(self) -> None:
        pool = make_pool(
            swa_size=SWA_PAGES * PAGE_TOKENS,
            c4_size=FULL_PAGES * PAGE_TOKENS // 4,
            c128_size=FULL_PAGES * PAGE_TOKENS // 128,
            compression_ratios=[4, 0, 4],
            # Wider than the model's, so that the few pages lie on several VMM pages.
            indexer_head_dim=1024,
        )
        self.model = Model(pool, full_pages=FULL_PAGES, swa_pages=SWA_PAGES)
        self.pools = self.model.pools
        assert tuple(each.name for each in self.pools) == self.managed
        self.sides = {each.name: Side(each.geometry) for each in self.pools}
        compressed = {name: side for name, side in self.sides.items() if name != SWA}
        self.full = Space(FULL_PAGES, compressed)
        self.swa = Space(SWA_PAGES, {SWA: self.sides[SWA]})
        self.buffers = {
            SWA: pool.swa_kv_pool.kv_buffer,
            C4: pool.c4_kv_pool.kv_buffer,
            INDEXER: pool.c4_indexer_kv_pool.index_k_with_scale_buffer,
        }
        self.requests: list[Request] = []
        self.content: dict[str, dict[int, int]] = {name: {} for name in self.sides}
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
            with self.failing_unmap(data, swa=request.swa[pages]):
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
        if as_a_set:
            swa = sorted(swa)
        if alive:
            with self.failing_unmap(data, swa=swa, full=sorted(alive) if as_a_set else alive):
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
        with self.failing_unmap(data, swa=swa, full=full):
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
        self.full.clear()
        self.swa.clear()
        self.content = {name: {} for name in self.sides}

    @rule(data=st.data())
    def limit(self, data: st.DataObject) -> None:
        """A shrink, also below what is in use, or a regrow."""
        name = data.draw(st.sampled_from(self.managed))
        side, pool = self.sides[name], self.pools[name]
        count = data.draw(
            st.sampled_from([side.geometry.vmm_page_count, *range(side.geometry.vmm_page_count)])
        )
        self.revision += 1
        state = pool.set_memory_limit(count * side.geometry.bundle_bytes, revision=self.revision)
        side.limit = max(count, len(side.vmm_pages([0])))
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
            assert pool.ledger.holders(pool.name) == [
                holders[page] for page in range(side.geometry.vmm_page_count)
            ]
            assert pool.backing.mapped_pages.tolist() == sorted(side.mapped)
            assert pool.mapped_bytes == len(side.mapped) * side.geometry.bundle_bytes
            assert pool.backing.quarantined_pages.tolist() == sorted(side.lost)
            assert pool.limit_state.effective_bytes == side.limit * side.geometry.bundle_bytes
            self.check_content(name)
        self.check_mapping()
        if not any(side.lost for side in self.sides.values()):
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
        ids = {IdSpace.FULL: self.full.upcoming[:count], IdSpace.SWA: self.swa.upcoming[:count]}
        possible = (
            count <= min(len(self.full.free), len(self.swa.free))
            and self.full.has_room_for(ids[IdSpace.FULL])
            and self.swa.has_room_for(ids[IdSpace.SWA])
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
            retried = self.retry_overdue(count, ids, lost)
            if lost is not None and lost.pages:
                self.space_of(lost.name).lose(lost.name, lost.pages)
            elif not retried:
                assert self.observed() == before
            return
        assert taken is not None
        full, swa = self.full.take(count), self.swa.take(count)
        assert torch.unique(taken // PAGE_TOKENS).tolist() == sorted(full)
        if request is None:
            self.requests.append(Request(full, swa))
        else:
            request.full += full
            request.swa += swa
        for name in self.sides:
            self.write(name, swa if name == SWA else full)

    def retry_overdue(
        self, count: int, ids: dict[IdSpace, list[int]], lost: Injected | None
    ) -> bool:
        """A miss unmaps what earlier pools mapped for it, and their overdue pages with that."""
        if count > min(len(self.full.free), len(self.swa.free)):
            return False
        retried = False
        for name, side in self.sides.items():
            new = ids[IdSpace.SWA if name == SWA else IdSpace.FULL]
            if name == (lost.name if lost else None) or not side.has_room_for(new):
                break
            if side.vmm_pages(new) - side.held:
                retried = retried or bool(side.overdue)
                side.overdue = set()
        return retried

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

    def injected(self, data: st.DataObject, ids: dict[IdSpace, list[int]]) -> Injected | None:
        """A failure of the driver that this allocation will meet, if one is drawn."""
        if data.draw(st.integers(0, 3)):
            return None
        creates: list[tuple[str, set[int]]] = []
        for name, side in self.sides.items():
            new = side.new_pages(ids[IdSpace.SWA if name == SWA else IdSpace.FULL])
            creates += [(name, new)] * len(new) * side.geometry.layer_count
        if not creates:
            return None
        nth = data.draw(st.integers(1, len(creates)))
        name, new = creates[nth - 1]
        first = creates.index((name, new)) + 1
        # Where the second layer of the first page of a pool misses, its first layer can be lost.
        if nth == first + 1 and data.draw(st.booleans()):
            return Injected(((Call.CREATE, nth), (Call.UNMAP, nth + 1)), name, new)
        return Injected(((Call.CREATE, nth),), name, set())

    def failing_unmap(
        self, data: st.DataObject, *, swa: Sequence[int] = (), full: Sequence[int] = ()
    ) -> ExitStack:
        """Gives ids back in the model; the driver may refuse the first unmap of the only pool."""
        stack = ExitStack()
        gone: dict[str, set[int]] = {}
        for space, ids in ((self.swa, list(swa)), (self.full, list(full))):
            if ids:
                gone |= space.give(ids)
                for name in space.sides:
                    for each in ids:
                        del self.content[name][each]
        unmapped = [name for name in gone if gone[name]]
        if len(unmapped) == 1 and not data.draw(st.integers(0, 3)):
            (name,) = unmapped
            stack.enter_context(vmm.fail_at(Call.UNMAP))
            self.sides[name].overdue = gone[name]
        return stack

    def space_of(self, name: str) -> Space:
        return self.swa if name == SWA else self.full

    def free_retired(self, request: Request, data: st.DataObject) -> None:
        pages = request.full[: request.retired]
        if pages:
            with self.failing_unmap(data, full=pages):
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


@dataclass(frozen=True)
class Injected:
    """Calls that fail, and the VMM pages of a pool that are lost by it."""

    calls: tuple[tuple[Call, int], ...]
    name: str
    pages: set[int]


def run_in_any_order(managed: tuple[str, ...], *, steps: int) -> None:
    """At least `steps` random steps over a model of which the pools `managed` are managed."""
    AnyOrder.managed, AnyOrder.steps = managed, 0
    runs = 0
    while AnyOrder.steps < steps:
        run_state_machine_as_test(
            AnyOrder,
            settings=settings(
                max_examples=ceil((steps - AnyOrder.steps) / STEPS_OF_A_RUN),
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
