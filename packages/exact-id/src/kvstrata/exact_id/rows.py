# SPDX-License-Identifier: Apache-2.0
"""The rows of a managed pool, in the place of buffers that SGLang would allocate."""

from typing import TYPE_CHECKING

from .geometry import PoolGeometry
from .transaction import ManagedPools

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.memory_pool import KVCache


def managed_rows(
    part: "KVCache", name: str, pools: ManagedPools, *, page_bytes: int, dtype: "torch.dtype"
) -> "list[torch.Tensor]":
    """Make the selected pool `name` as large as SGLang would make `part`, which it is making.

    Returns, for each layer of `part`, one row of `page_bytes` for each page and for row 0.
    """
    geometry = PoolGeometry(
        # SGLang's own number of rows, less row 0.
        page_count=(part.size + part.page_size + 1) // part.page_size - 1,
        page_bytes=page_bytes,
        layer_count=part.layer_num,
        vmm_page_bytes=_vmm_page_bytes(),
    )
    return pools.make(name, geometry, dtype)


def _vmm_page_bytes() -> int:
    from kvcached.utils import PAGE_SIZE

    return int(PAGE_SIZE)
