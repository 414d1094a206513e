# SPDX-License-Identifier: Apache-2.0
"""The real kvcached over host memory, with the hooks of the slice and of those under it."""

from collections.abc import Iterator

import pytest

from kvstrata.c4_kv import plugin as c4_kv
from kvstrata.exact_id import plugin as exact_id
from kvstrata.packed_indexer import plugin as packed_indexer
from kvstrata_host.leases.fixtures import kvcached, no_reservations, switch_on

__all__ = ["kvcached", "no_reservations", "switched_on"]


@pytest.fixture(scope="session")
def switched_on(kvcached: None) -> Iterator[None]:
    """This process with ENABLE_KVCACHED on."""
    with switch_on(exact_id, c4_kv, packed_indexer):
        yield
