# SPDX-License-Identifier: Apache-2.0
"""A request's allocation and its end, where no page crosses a map or an unmap."""

from collections.abc import Iterator
from statistics import median

import torch
from paired import Ratio, in_turn, seconds

from .model import FEW_LAYERS, Model, ModelError, make_model

REQUEST_PAGES = (1, 8, 64, 512)
_TIMED_PAGES = 512
_SHARE = 0.1
_EXTRA_SECONDS = 100e-6
_SMALL_POOL, _LARGE_POOL = 1 << 10, 1 << 14
_BY_SIZE_PAGES = 64


def measure(rounds: int) -> Iterator[Ratio]:
    """Managed against native pools for requests of several sizes, then pools of two sizes."""
    largest = max(REQUEST_PAGES)
    managed, native = (
        make_model(3 * largest, managed=each, layers=FEW_LAYERS) for each in (True, False)
    )
    for pages in REQUEST_PAGES:
        product, peer = _paired(rounds, managed, native, pages)
        yield Ratio(
            f"allocation and end of a request of {_pages(pages)}",
            product,
            peer,
            peer="native pools",
            limit=allowed(median(peer)),
        )
    managed.managed.close()
    yield _by_pool_size(rounds)


def allowed(native_seconds: float) -> float:
    """The ratio at native time and a tenth, or native time and 100 µs, whichever is more."""
    return 1 + max(_SHARE, _EXTRA_SECONDS / native_seconds)


def spread_out(model: Model, pages: int) -> torch.Tensor:
    """Make the next `pages` free ids lie between live ones, which hold their memory.

    Returns the tokens of the live ones.
    """
    tokens = model.start(2 * pages + 1).view(2 * pages + 1, -1)
    model.end(tokens[1::2].reshape(-1))
    return tokens[::2].reshape(-1)


def _paired(
    rounds: int, managed: Model, native: Model, pages: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    repeats = max(1, _TIMED_PAGES // pages // 8)

    def time(model: Model) -> float:
        def work() -> None:
            for _ in range(repeats):
                model.end(model.start(pages))

        return seconds(work) / repeats

    live = [spread_out(model, pages) for model in (managed, native)]
    before = _mapped(managed)
    times = in_turn(rounds, lambda _: time(managed), lambda _: time(native))
    if _mapped(managed) != before:
        raise ModelError("a VMM page was mapped or unmapped")
    for model, tokens in zip((managed, native), live, strict=True):
        model.end(tokens)
        model.allocator.clear()
    return times


def _by_pool_size(rounds: int) -> Ratio:
    """What leases do for a request, alone: SGLang's own free list is copied for each request."""
    from kvstrata.exact_id.transaction import IdSpace

    models = [make_model(pages, layers=FEW_LAYERS) for pages in (_LARGE_POOL, _SMALL_POOL)]
    works = []
    for model in models:
        spread_out(model, _BY_SIZE_PAGES)
        ids = model.allocator.full_attn_allocator.free_pages[:_BY_SIZE_PAGES].tolist()
        wanted = {IdSpace.FULL: ids, IdSpace.SWA: ids}

        def work(pools=model.managed, wanted=wanted) -> None:  # type: ignore[no-untyped-def]
            for _ in range(20):
                pools.lease(wanted)
                pools.release(wanted)

        works.append(work)
    large, small = works
    times = in_turn(rounds, lambda _: seconds(large) / 20, lambda _: seconds(small) / 20)
    for model in models:
        model.managed.close()
    return Ratio(
        f"leases of a request of {_pages(_BY_SIZE_PAGES)}, pools of {_LARGE_POOL:,} pages",
        *times,
        peer=f"pools of {_SMALL_POOL:,} pages",
        limit=1.1,
    )


def _mapped(model: Model) -> list[int]:
    return [pool.backing.mapped_count for pool in model.managed]


def _pages(count: int) -> str:
    return "1 page" if count == 1 else f"{count} pages"
