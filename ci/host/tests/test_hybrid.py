# SPDX-License-Identifier: Apache-2.0
"""The host pools of hybrid models hold what SGLang writes to a page, in both layouts."""

from typing import Any

import pytest
import torch

from kvstrata_host.hybrid import HYBRIDS, make_hybrid

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(params=["page_first", "page_first_direct"])
def layout(request: pytest.FixtureRequest) -> str:
    layout: str = request.param
    return layout


def page_bytes(pool: Any, page: int) -> torch.Tensor:
    flat: torch.Tensor = pool.get_data_page(page * pool.page_size, flat=True)
    return flat.contiguous().view(torch.uint8)


@pytest.mark.parametrize("kind", HYBRIDS)
def test_a_page_holds_what_was_written_to_it_and_its_neighbour_does_not(
    kind: str, layout: str
) -> None:
    for name, pool in make_hybrid(kind, layout).items():
        flat = pool.get_dummy_flat_data_page()
        if not flat.numel():
            assert (kind, name) == ("v4", "kv")
            continue
        pool.set_from_flat_data_page(0, flat)
        written = torch.randint(1, 256, (flat.nbytes,), dtype=torch.uint8)
        pool.set_from_flat_data_page(pool.page_size, written.view(flat.dtype))
        assert torch.equal(page_bytes(pool, 1), written), name
        assert not page_bytes(pool, 0).any(), name


def test_a_mamba_page_is_one_state_of_several_tensors(layout: str) -> None:
    states = make_hybrid("mamba", layout)["mamba"]
    assert states.page_size == 1
    assert len(states.get_page_buffer_meta(torch.tensor([2]))[0]) == 3


def test_the_anchor_of_deepseek_v4_has_no_bytes(layout: str) -> None:
    assert make_hybrid("v4", layout)["kv"].get_page_buffer_meta(torch.arange(256)) is None
