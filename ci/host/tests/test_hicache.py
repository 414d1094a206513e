# SPDX-License-Identifier: Apache-2.0
"""SGLang's controller takes KV to storage and back through the copies, byte for byte."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .pools import LAYERS, Tier, make_indexer

pytestmark = pytest.mark.integration

KINDS = ("mha", "mla")
PATHS = (
    ("layer_first", "direct"),
    ("layer_first", "kernel"),
    ("page_first", "kernel"),
    ("page_first_direct", "direct"),
)
TOKENS = list(range(12))


@pytest.fixture(params=[(kind, *path) for kind in KINDS for path in PATHS], ids="-".join)
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    kind, layout, io_backend = request.param
    tier = Tier(kind, layout, io_backend, tmp_path)
    yield tier
    tier.close()


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_kv_comes_back_from_storage_as_it_was(tier: Tier) -> None:
    assert tier.host_pool.pin_memory is False
    written = tier.back_up(TOKENS)
    assert same(tier.restore(TOKENS), written)


def test_the_comparison_notices_a_damaged_file(tier: Tier, tmp_path: Path) -> None:
    written = tier.back_up(TOKENS)
    file = next(path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 99)
    content = bytearray(file.read_bytes())
    content[40] ^= 0x40
    file.write_bytes(content)
    assert not same(tier.restore(TOKENS), written)


@pytest.mark.parametrize(("layout", "io_backend"), PATHS)
def test_the_indexers_pages_come_back_from_the_host_as_they_were(
    layout: str, io_backend: str
) -> None:
    device, host = make_indexer(layout)
    buffers = device.index_k_with_scale_buffer
    for buffer in buffers:
        buffer.copy_(torch.randint(0, 256, buffer.shape, dtype=torch.uint8))
    written = [buffer[1].clone() for buffer in buffers]
    device_page, host_page = torch.arange(64, 128), torch.arange(0, 64)
    host.backup_from_device_all_layer(device, host_page, device_page, io_backend)
    for buffer in buffers:
        buffer.zero_()
    for layer in range(LAYERS):
        host.load_to_device_per_layer(device, host_page, device_page, layer, io_backend)
    assert same([buffer[1] for buffer in buffers], written)
    assert int(sum(buffer[0].sum() for buffer in buffers)) == 0
