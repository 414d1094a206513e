# SPDX-License-Identifier: Apache-2.0
"""A request for which memory is mapped, and unmapped at its end, in every layer of every pool."""

from collections.abc import Callable, Iterator
from itertools import count

from kvcached import vmm_ops
from paired import Ratio, in_turn, seconds

from .model import FEW_LAYERS, Model, ModelError, make_model

SWA_VMM_PAGES = (1, 4, 32)
_LIMIT = 1.1
_PAGES = 640
_transactions = count()


def measure(rounds: int) -> Iterator[Ratio]:
    """A request on managed pools, against one on native pools and kvcached's calls beside it."""
    # No id depends on the number of layers; native ones would take their memory at once.
    managed, native = make_model(_PAGES), make_model(_PAGES, managed=False, layers=FEW_LAYERS)
    for vmm_pages in SWA_VMM_PAGES:
        yield _growth(rounds, managed, native, vmm_pages)
    managed.managed.close()


def _growth(rounds: int, managed: Model, native: Model, vmm_pages: int) -> Ratio:
    geometry = managed.managed["swa"].geometry
    # Row 0 holds the first VMM page; these pages fill the next ones, nearly to the end.
    first = geometry.vmm_page_bytes // geometry.page_bytes
    pages = (1 + vmm_pages) * geometry.vmm_page_bytes // geometry.page_bytes - first
    live = [model.start(first - 1) for model in (managed, native)]
    before = _mapped_pages(managed)
    request = managed.start(pages)
    new = {
        name: sorted(set(now) - set(before[name])) for name, now in _mapped_pages(managed).items()
    }
    managed.end(request)
    if len(new["swa"]) != vmm_pages:
        raise ModelError(f"{pages} pages mapped {len(new['swa'])} VMM pages of the window")
    calls = [
        _kvcached_calls(
            pool.backing.group_id, [page * pool.geometry.vmm_page_bytes for page in new[pool.name]]
        )
        for pool in managed.managed
        if new[pool.name]
    ]

    def beside() -> None:
        native.end(native.start(pages))
        for call in calls:
            call()

    times = in_turn(
        rounds,
        lambda _: seconds(lambda: managed.end(managed.start(pages))),
        lambda _: seconds(beside),
    )
    if _mapped_pages(managed) != before:
        raise ModelError("not everything was unmapped again")
    for model, tokens in zip((managed, native), live, strict=True):
        model.end(tokens)
    bundles = sum(len(new[pool.name]) * pool.geometry.layer_count for pool in managed.managed)
    return Ratio(
        f"a request of {pages} pages that maps and unmaps {bundles:,} VMM pages",
        *times,
        peer="native pools, and kvcached's own calls for these VMM pages",
        limit=_LIMIT,
    )


def _kvcached_calls(group_id: int, offsets: list[int]) -> Callable[[], None]:
    def map_and_unmap() -> None:
        succeeded, _ = vmm_ops.map_to_kv_tensors_with_result(offsets, group_id)
        name = f"bench-dsv4-{next(_transactions)}"
        if not (
            succeeded
            and vmm_ops.prepare_unmap_from_kv_tensors(offsets, name, group_id)
            and vmm_ops.commit_unmap_from_kv_tensors(name, group_id)
        ):
            raise ModelError("kvcached refused to map or to unmap")

    return map_and_unmap


def _mapped_pages(model: Model) -> dict[str, list[int]]:
    return {pool.name: pool.backing.mapped_pages.tolist() for pool in model.managed}
