# SPDX-License-Identifier: Apache-2.0
"""Every copy against the plain reference: the bytes it must move, and none other."""

import copy as copying
from collections.abc import Callable

import pytest
import torch

from kvstrata_host.copies import COPIES

from .reference import COPIES_UNDER_TEST, Copy, Pool, Shape

SHAPES = (
    Shape(pages=5, page_size=1, layers=2, item=(1, 8), dtype=torch.float32),
    Shape(pages=6, page_size=4, layers=3, item=(2, 8), dtype=torch.bfloat16),
    Shape(pages=9, page_size=16, layers=1, item=(1, 24), dtype=torch.float8_e4m3fn),
    Shape(pages=7, page_size=2, layers=4, item=(3, 5), dtype=torch.uint8),
)
Indices = tuple[torch.Tensor, torch.Tensor]

every_copy = pytest.mark.parametrize("copy", COPIES_UNDER_TEST, ids=str)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


def scattered(shape: Shape) -> Indices:
    """Token indices of three pages in no order, other pages on each side."""
    orders = [torch.randperm(shape.pages)[:3] for _ in range(2)]
    offsets = torch.arange(shape.page_size)
    source, target = [(order[:, None] * shape.page_size + offsets).flatten() for order in orders]
    return source, target


def pools(copy: Copy, shape: Shape) -> tuple[list[Pool], list[Pool]]:
    sources = [Pool(shape, copy.source) for _ in range(copy.components)]
    return sources, [Pool(shape, copy.target) for _ in range(copy.components)]


def difference(
    copy: Copy,
    shape: Shape,
    *,
    given: Callable[[Indices], Indices] = lambda indices: indices,
    then: Callable[[list[Pool]], None] = lambda targets: None,
) -> int:
    """The number of bytes in which a copy and its reference differ, untouched bytes included.

    The copy gets what `given` makes of the indices; `then` happens to its targets afterwards.
    """
    sources, targets = pools(copy, shape)
    expected = copying.deepcopy(targets)
    indices, layer = scattered(shape), shape.layers - 1
    copy.expect(sources, expected, indices, layer)
    copy.run(sources, targets, given(indices), layer)
    then(targets)
    pairs = zip(targets, expected, strict=True)
    return sum(int((got.bytes() != want.bytes()).sum()) for got, want in pairs)


@every_shape
@every_copy
def test_a_copy_moves_exactly_the_bytes_of_the_reference(copy: Copy, shape: Shape) -> None:
    assert difference(copy, shape) == 0


@every_copy
def test_a_copy_takes_32_bit_indices(copy: Copy) -> None:
    def narrow(indices: Indices) -> Indices:
        return indices[0].to(torch.int32), indices[1].to(torch.int32)

    assert difference(copy, SHAPES[1], given=narrow) == 0


@every_copy
def test_the_comparison_notices_one_damaged_byte(copy: Copy) -> None:
    def flip_a_bit(targets: list[Pool]) -> None:
        targets[-1].memory[-1].view(torch.uint8).view(-1)[-1] ^= 1

    assert difference(copy, SHAPES[1], then=flip_a_bit) == 1


@every_copy
def test_the_comparison_notices_pages_in_the_wrong_order(copy: Copy) -> None:
    def rotate(indices: Indices) -> Indices:
        return indices[0].roll(SHAPES[1].page_size), indices[1]

    assert difference(copy, SHAPES[1], given=rotate) > 0


@every_copy
def test_the_comparison_notices_a_page_that_was_not_copied(copy: Copy) -> None:
    def shorten(indices: Indices) -> Indices:
        kept = indices[0].numel() - SHAPES[1].page_size
        return indices[0][:kept], indices[1][:kept]

    assert difference(copy, SHAPES[1], given=shorten) > 0


@every_copy
def test_copying_nothing_changes_nothing(copy: Copy) -> None:
    shape, nothing = SHAPES[1], torch.empty(0, dtype=torch.int64)
    sources, targets = pools(copy, shape)
    before = copying.deepcopy(targets)
    copy.run(sources, targets, (nothing, nothing), 0)
    assert all(torch.equal(a.bytes(), b.bytes()) for a, b in zip(targets, before, strict=True))


def refuse(
    copy: Copy, sources: list[Pool], targets: list[Pool], indices: Indices, message: str
) -> None:
    """The copy raises ValueError with the message, and not one byte of a target has changed."""
    before = copying.deepcopy(targets)
    with pytest.raises(ValueError, match=message):
        copy.run(sources, targets, indices, 0)
    assert all(torch.equal(a.bytes(), b.bytes()) for a, b in zip(targets, before, strict=True))


@every_copy
def test_a_source_without_a_target_is_refused(copy: Copy) -> None:
    source, target = scattered(SHAPES[1])
    refuse(copy, *pools(copy, SHAPES[1]), (source[:8], target), "8 entries, dst_indices 12")


@pytest.mark.parametrize("copy", [c for c in COPIES_UNDER_TEST if not c.one_layer], ids=str)
@pytest.mark.parametrize("change", ["missing", "surplus"])
def test_another_number_of_layers_in_the_last_component_is_refused(copy: Copy, change: str) -> None:
    sources, targets = pools(copy, SHAPES[1])
    layers = sources[-1].memory
    layers[:] = layers[:-1] if change == "missing" else [*layers, layers[0]]
    refuse(copy, sources, targets, scattered(SHAPES[1]), "layers|sources cannot be copied to")


@pytest.mark.parametrize(
    "copy", [c for c in COPIES_UNDER_TEST if "direct" in c.name and c.components == 2], ids=str
)
def test_a_direct_copy_with_a_component_less_on_one_side_is_refused(copy: Copy) -> None:
    sources, targets = pools(copy, SHAPES[1])
    refuse(copy, sources[:1], targets, scattered(SHAPES[1]), "do not fill|cannot be copied to")


@pytest.mark.parametrize(
    "copy", [c for c in COPIES_UNDER_TEST if (c.source, c.target) == ("lf", "pf")], ids=str
)
def test_more_layers_than_a_token_of_the_pool_holds_are_refused(copy: Copy) -> None:
    shape = SHAPES[1]
    sources, targets = pools(copy, shape)
    before = copying.deepcopy(targets)
    source, target = scattered(shape)
    suffixes = ("_k", "_v") if copy.components == 2 else ("",)
    named = {
        f"src{part}_layers": pool.pointers for part, pool in zip(suffixes, sources, strict=True)
    }
    named |= {f"dst{part}": pool.memory[0] for part, pool in zip(suffixes, targets, strict=True)}
    with pytest.raises(ValueError, match="3 layers of item_size 32 do not fit"):
        COPIES[copy.name](
            **named,
            src_indices=source,
            dst_indices=target,
            item_size=shape.item_bytes,
            dst_layout_dim=2 * shape.item_bytes,
            num_layers=shape.layers,
        )
    assert all(torch.equal(a.bytes(), b.bytes()) for a, b in zip(targets, before, strict=True))


@pytest.mark.parametrize("copy", [c for c in COPIES_UNDER_TEST if "direct" in c.name], ids=str)
def test_a_direct_copy_of_part_of_a_page_is_refused(copy: Copy) -> None:
    source, target = scattered(SHAPES[1])
    part = (source[:6], target[:6])
    refuse(copy, *pools(copy, SHAPES[1]), part, "not whole pages of page_size 4")


@pytest.mark.parametrize(
    "copy", [c for c in COPIES_UNDER_TEST if "pfd" in (c.source, c.target)], ids=str
)
def test_a_page_with_its_tokens_out_of_order_is_refused(copy: Copy) -> None:
    reverse = torch.tensor([3, 2, 1, 0])
    message = "not page-aligned runs of page_size 4"
    refuse(copy, *pools(copy, SHAPES[1]), (reverse, reverse), message)


def test_every_copy_is_tested() -> None:
    assert {copy.name for copy in COPIES_UNDER_TEST} == set(COPIES)
