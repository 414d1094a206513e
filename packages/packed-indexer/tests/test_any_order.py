# SPDX-License-Identifier: Apache-2.0
import pytest

from kvstrata.exact_id.ownership import C4, INDEXER, SWA
from kvstrata_host.leases.any_order import run_in_any_order

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]

STEPS = 2_000


@pytest.mark.timeout(600)
def test_allocators_and_memory_follow_the_model_in_any_order() -> None:
    run_in_any_order((SWA, C4, INDEXER), steps=STEPS)
