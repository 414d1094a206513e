# SPDX-License-Identifier: Apache-2.0
import os

import pytest

from kvstrata.exact_id import ownership
from kvstrata.exact_id.ownership import C4, SWA, Claim
from kvstrata.exact_id.transaction import IdSpace
from kvstrata_host.leases.any_order import run_in_any_order

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("switched_on")]

STEPS = int(os.environ.get("EXACT_ID_STEPS", "10000"))


@pytest.fixture
def c4_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ownership._claims, C4, Claim(C4, IdSpace.FULL, "the test"))


@pytest.mark.timeout(600)
def test_allocators_and_memory_follow_the_model_in_any_order(c4_is_claimed: None) -> None:
    run_in_any_order((SWA, C4), steps=STEPS)
