# SPDX-License-Identifier: Apache-2.0
"""A model on a real GPU, for the tests that need one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch

from .fixtures import Plugin, switch_on

if TYPE_CHECKING:
    from .model import Model

DEVICE = "cuda:0"
SWA_PAGES = 200
FULL_PAGES = 600
"""So many that the packed index keys lie on three VMM pages."""

gpu_only = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.timeout(300),
]


@contextmanager
def model_on_gpu(*plugins: Plugin) -> Iterator["Model"]:
    """A real DeepSeek-V4 pool on the GPU, managed by `plugins`."""
    with switch_on(*plugins):
        from .model import PAGE_TOKENS, Model, make_pool

        pool = make_pool(
            device=DEVICE,
            swa_size=SWA_PAGES * PAGE_TOKENS,
            c4_size=FULL_PAGES * PAGE_TOKENS // 4,
            c128_size=FULL_PAGES * PAGE_TOKENS // 128,
        )
        made = Model(pool, full_pages=FULL_PAGES, swa_pages=SWA_PAGES)
        yield made
        made.pools.close()


def free_bytes() -> int:
    return torch.cuda.mem_get_info(DEVICE)[0]
