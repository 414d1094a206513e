# SPDX-License-Identifier: Apache-2.0
"""Pools of kvcached in this process, which holds one kvcached for all tests."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

# kvcached reads these as it is imported: layers apart, no pages in reserve, segments of our own.
os.environ["KVCACHED_CONTIGUOUS_LAYOUT"] = "false"
os.environ["KVCACHED_PAGE_PREALLOC_ENABLED"] = "false"
os.environ["KVCACHED_MAX_RESERVED_PAGES"] = "0"
os.environ["KVCACHED_IPC_NAME"] = f"kvcached_host_tests_{os.getpid()}"
os.environ["KVCACHED_LOG_LEVEL"] = "FATAL"

from kvcached import vmm_ops

PAGE_BYTES = 2 << 20
_GROUPS = itertools.count(1)


@dataclass(frozen=True)
class Pool:
    """KV tensors of one group: `tensors` has one for each layer, of bytes."""

    group_id: int
    tensors: tuple[torch.Tensor, ...]

    @property
    def layers(self) -> int:
        return len(self.tensors)

    def page(self, page: int, layer: int = 0) -> torch.Tensor:
        return self.tensors[layer][page * PAGE_BYTES : (page + 1) * PAGE_BYTES]


@pytest.fixture(scope="session")
def kvcached() -> Iterator[None]:
    vmm_ops.init_kvcached("cpu", PAGE_BYTES, False)
    yield
    vmm_ops.shutdown_kvcached()


def make_pool(pages: int, layers: int) -> Pool:
    group_id = next(_GROUPS)
    tensors = vmm_ops.create_kv_tensors(
        pages * PAGE_BYTES, 1, "cpu", layers, 1, group_id, unified_pool=True
    )
    return Pool(group_id, tuple(tensor.view(torch.uint8) for tensor in tensors))


@pytest.fixture
def pool(kvcached: None) -> Pool:
    """Eight pages in each of two layers, none mapped."""
    return make_pool(pages=8, layers=2)
