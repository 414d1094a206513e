# SPDX-License-Identifier: Apache-2.0
"""All managed pools under SGLang's own scheduling code: prefix cache, eviction, retraction."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstrata.exact_id.ownership import C4, INDEXER, SWA
from kvstrata_host.leases.engine import Size
from kvstrata_host.leases.serving import Engines, check_twins, engines_in, in_process

pytestmark = in_process

# Small enough for evictions, large enough for several VMM pages of each pool.
FULL_PAGES = 320


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    with engines_in(tmp_path) as made:
        yield made


@pytest.mark.parametrize("chunk_tokens", [None, 4096], ids=["whole prompts", "in parts"])
def test_a_served_load_is_the_same_on_managed_and_native_pools(
    engines: Engines, chunk_tokens: int | None
) -> None:
    size = Size(full_pages=FULL_PAGES, chunk_tokens=chunk_tokens)
    check_twins(engines, (SWA, C4, INDEXER), seed=1, size=size)
