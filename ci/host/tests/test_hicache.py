# SPDX-License-Identifier: Apache-2.0
"""SGLang's controller takes KV to storage and back through the copies, byte for byte."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvstrata_host.rank import LAYERS, Rank, make_indexer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

KINDS = ("mha", "mla")
PATHS = (
    ("layer_first", "direct"),
    ("layer_first", "kernel"),
    ("page_first", "kernel"),
    ("page_first_direct", "direct"),
)
TOKENS = list(range(12))


@pytest.fixture(params=[(kind, *path) for kind in KINDS for path in PATHS], ids="-".join)
def rank(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rank]:
    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(tmp_path))
    kind, layout, io_backend = request.param
    rank = Rank(kind, layout, io_backend, storage_backend="file")
    yield rank
    rank.close()


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_kv_comes_back_from_storage_as_it_was(rank: Rank) -> None:
    assert rank.host_pool.pin_memory is False
    written = rank.back_up(TOKENS)
    assert same(rank.restore(TOKENS)[1], written)


def test_the_comparison_notices_a_damaged_file(rank: Rank, tmp_path: Path) -> None:
    written = rank.back_up(TOKENS)
    file = next(path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 99)
    content = bytearray(file.read_bytes())
    content[40] ^= 0x40
    file.write_bytes(content)
    assert not same(rank.restore(TOKENS)[1], written)


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
