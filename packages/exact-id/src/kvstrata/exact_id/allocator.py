# SPDX-License-Identifier: Apache-2.0
"""SGLang's page allocator with leases on the ids that it hands out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import KVCache

from .errors import AllocationMiss, PoolFailedError, SetupError
from .geometry import Ids
from .transaction import IdSpace, ManagedPools

Native = Callable[[], torch.Tensor | None]
"""SGLang's own allocation."""


class Want(NamedTuple):
    """New pages. SGLang sorts freed pages in first if it has fewer than `reach`."""

    pages: int
    reach: int


class _FreeList(NamedTuple):
    # SGLang replaces these tensors and never writes to them.
    free_pages: torch.Tensor
    staged_pages: tuple[torch.Tensor, ...]
    num_staged_pages: int


class LeasedPagedAllocator(PagedTokenToKVPoolAllocator):  # type: ignore[misc]
    """Picks ids as SGLang does; an id is leased before it leaves the free list.

    A miss leaves the free list as it was, order included. An id goes back when SGLang frees it,
    which is at the end of a free group.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str,
        kvcache: KVCache,
        need_sort: bool,  # noqa: FBT001 - SGLang's signature
        *,
        pools: ManagedPools,
        space: IdSpace,
    ) -> None:
        self.free_pages: torch.Tensor
        self.staged_pages: list[torch.Tensor]
        self.num_staged_pages: int
        self.pools = pools
        self.space = space
        self.is_leased_already = False
        self.counts_ids_alone = False
        self._copied: tuple[torch.Tensor | None, Ids] = (None, np.empty(0, dtype=np.int64))
        super().__init__(size, page_size, dtype, device, kvcache, need_sort)

    def available_size(self) -> int:
        """Tokens that may be promised.

        While more pages are in use than fit in a limit it is below 0: so many have to be freed
        before one may be.
        """
        count = self.native_count
        if self.counts_ids_alone:
            count += self.pools.lost_ids(self.space).size
        elif not self.is_leased_already and self.pools.is_constrained(self.space):
            leasable = self.pools.leasable_count(self.space, self._free_ids())
            count = min(leasable, self.pools.fitting_count(self.space))
        return count * int(self.page_size)

    @property
    def obtainable_size(self) -> int:
        """Tokens for which there are ids and memory now, whatever limit will have to be met."""
        count = self.native_count
        if self.pools.is_constrained(self.space):
            count = self.pools.leasable_count(self.space, self._free_ids())
        return count * int(self.page_size)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        native: Native = partial(super().alloc, need_size)
        if self.is_leased_already:
            return native()
        count = need_size // self.page_size
        return allocate({self: Want(count, count)}, native)

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        native: Native = partial(
            super().alloc_extend,
            prefix_lens,
            prefix_lens_cpu,
            seq_lens,
            seq_lens_cpu,
            last_loc,
            extend_num_tokens,
            num_new_pages=num_new_pages,
        )
        if self.is_leased_already:
            return native()
        count = num_new_pages
        if count is None:
            count = new_pages(self, seq_lens_cpu, prefix_lens_cpu)
        return allocate({self: extending(self, count, extend_num_tokens, prefix_lens)}, native)

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        native: Native = partial(super().alloc_decode, seq_lens, seq_lens_cpu, last_loc)
        if self.is_leased_already:
            return native()
        return allocate({self: decoding(self, seq_lens_cpu)}, native)

    def clear(self) -> None:
        for pool in self.pools.of(self.space):
            if self.num_pages > pool.geometry.page_count:
                raise SetupError(
                    f"the number of pages of pool {pool.name}",
                    self.num_pages,
                    f"at most {pool.geometry.page_count}, as it was made",
                    "Do not resize KV pools after they were made.",
                )
        super().clear()
        self.pools.clear(self.space)
        self.withdraw_lost()

    def withdraw_lost(self) -> None:
        """Take ids that can never be leased again out of the free list, for good."""
        lost = self.pools.lost_ids(self.space)
        if lost.size:
            ids = torch.from_numpy(lost).to(self.device)
            self.free_pages = _without(self.free_pages, ids)
            self.staged_pages = [_without(each, ids) for each in self.staged_pages]
            self.num_staged_pages = sum(each.numel() for each in self.staged_pages)

    @property
    def native_count(self) -> int:
        """How many ids are free, with memory or not."""
        return self.free_pages.numel() + self.num_staged_pages

    def upcoming(self, want: Want) -> list[int]:
        """The ids that SGLang takes next; sorts the free list first where SGLang would.

        Where not all of them may have memory, those that need none come first.
        """
        if want.reach > self.free_pages.numel():
            self.merge_and_sort_free()
        if want.pages and self.pools.is_constrained(self.space):
            ordered = self.pools.mapped_first(self.space, host(self.free_pages))
            self.free_pages = torch.from_numpy(ordered).to(self.device)
        ids: list[int] = self.free_pages[: want.pages].tolist()
        return ids

    def remember(self) -> _FreeList:
        return _FreeList(self.free_pages, tuple(self.staged_pages), self.num_staged_pages)

    def restore(self, before: _FreeList) -> None:
        """Put the free list back, but for ids that were lost since."""
        self.free_pages = before.free_pages
        self.staged_pages = list(before.staged_pages)
        self.num_staged_pages = before.num_staged_pages
        self.withdraw_lost()

    def _free_ids(self) -> Ids:
        """The free list on the host, copied once for each state of it."""
        if self.staged_pages:
            return host(self.get_all_free_pages())
        if self._copied[0] is not self.free_pages:
            self._copied = (self.free_pages, host(self.free_pages))
        return self._copied[1]

    def _release_page_ids(self, *page_ids: torch.Tensor) -> None:
        # Every way back into the free list ends here, and groups are over by then.
        if self.pools.of(self.space):
            ids = [page_id for each in page_ids for page_id in each.tolist()]
            self.pools.release({self.space: ids})
        super()._release_page_ids(*page_ids)


def allocate(wants: Mapping[LeasedPagedAllocator, Want], native: Native) -> torch.Tensor | None:
    """Lease what `native` is about to take, and let it: both, or None and neither.

    All allocators are of one model. New ids come to the host once for each of them that has
    managed pools.
    """
    counts = {side: side.native_count for side in wants}
    # SGLang's kernels read the free list before it looks whether that is long enough.
    if any(want.pages > counts[side] for side, want in wants.items()):
        return None
    pools = next(iter(wants)).pools
    before = [(side, side.remember()) for side in wants]
    leased: dict[IdSpace, list[int]] = {}
    taken = None
    try:
        ids = {
            side.space: side.upcoming(want)
            for side, want in wants.items()
            if want.pages and pools.of(side.space)
        }
        pools.lease(ids)
        leased = ids
        taken = _checked(wants, counts, native)
    except AllocationMiss:
        pass
    finally:
        if taken is None:
            pools.release(leased)
            for side, free_list in before:
                side.restore(free_list)
    return taken


def new_pages(
    side: LeasedPagedAllocator, seq_lens_cpu: torch.Tensor, prefix_lens_cpu: torch.Tensor
) -> int:
    """How many pages an extend adds."""
    lengths = zip(prefix_lens_cpu.tolist(), seq_lens_cpu.tolist(), strict=True)
    size = side.page_size
    return sum(-(-after // size) - -(-before // size) for before, after in lengths)


def extending(
    side: LeasedPagedAllocator, count: int, token_count: int, requests: torch.Tensor
) -> Want:
    """What an extend by `token_count` tokens takes."""
    return Want(count, reach=token_count // side.page_size + len(requests) + 1)


def decoding(side: LeasedPagedAllocator, seq_lens_cpu: torch.Tensor) -> Want:
    """What a decode of one token for each request takes."""
    count = np.count_nonzero(seq_lens_cpu.numpy() % side.page_size == 1)
    return Want(int(count), reach=len(seq_lens_cpu))


def host(ids: torch.Tensor) -> Ids:
    """A copy on the host; on a GPU it waits for the stream that makes `ids`."""
    copy: Ids = ids.cpu().numpy().astype(np.int64)
    return copy


def _checked(
    wants: Mapping[LeasedPagedAllocator, Want],
    counts: Mapping[LeasedPagedAllocator, int],
    native: Native,
) -> torch.Tensor | None:
    """What `native` takes; PoolFailedError unless it is what was leased for it."""
    for side in wants:
        side.is_leased_already = True
    try:
        taken = native()
    finally:
        for side in wants:
            side.is_leased_already = False
    if taken is not None:
        for side, want in wants.items():
            count = counts[side] - side.native_count
            if count != want.pages:
                raise PoolFailedError(
                    f"SGLang took {count} {side.space.value} pages where {want.pages} were leased"
                )
    return taken


@contextmanager
def counting_ids_alone(sides: Sequence[LeasedPagedAllocator]) -> Iterator[None]:
    """Let every id count as available that nobody has, with memory or not, lost ones included."""
    for side in sides:
        side.counts_ids_alone = True
    try:
        yield
    finally:
        for side in sides:
            side.counts_ids_alone = False


def _without(page_ids: torch.Tensor, lost: torch.Tensor) -> torch.Tensor:
    return page_ids[~torch.isin(page_ids, lost)]
