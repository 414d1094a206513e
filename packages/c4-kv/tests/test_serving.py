# SPDX-License-Identifier: Apache-2.0
"""The sliding window and C4 under SGLang's own scheduling code; index keys are SGLang's."""

from pathlib import Path

from kvstrata.exact_id.ownership import C4, SWA
from kvstrata_host.leases.engine import Size
from kvstrata_host.leases.serving import check_twins, engines_in, in_process

pytestmark = in_process


def test_a_served_load_is_the_same_on_managed_and_native_pools(tmp_path: Path) -> None:
    with engines_in(tmp_path) as engines:
        check_twins(engines, (SWA, C4), seed=1, size=Size(full_pages=64))
