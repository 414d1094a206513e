# SPDX-License-Identifier: Apache-2.0
"""The load on SGLang's real pool, and what has to be mapped for it."""

import subprocess
import sys

import pytest
from elastic.footprint import Footprint
from hypothesis import given
from hypothesis import strategies as st

SHORT_RUN = """
import warnings

warnings.simplefilter("ignore")
from elastic.model import Size, make_model, prepare

prepare()
from elastic.load import Load, Wave

model = make_model(Size(full_pages=256, swa_pages=64))
load = Load(model, Wave(period_steps=8, crest=2), seed=3)

def mapped_as_expected():
    return all(
        pool.mapped_bytes == model.footprint(pool.name).mapped_bytes(load.live_ids(pool.name))
        and model.live_pages(pool.name) == len(list(load.live_ids(pool.name)))
        for pool in model.pools
    )

for step in range(3):
    load.step(step)
    assert mapped_as_expected()
assert load.running

first = load.running[0]
model.rows["swa"][1][first.live[-1], 7] += 1
model.rows["indexer"][1][first.full[0], 7] += 1
while load.running:
    load.step(step, arrivals=False)
    assert mapped_as_expected()
assert load.finished == load.requests
assert load.contents.pages_damaged == 2, load.contents.pages_damaged
assert load.history_damaged == 1 and load.history_compared > 1
assert not any(model.live_pages(pool.name) for pool in model.pools)
assert all(pool.mapped_bytes == pool.geometry.floor_bytes for pool in model.pools)
print("done")
"""


@pytest.mark.integration
def test_the_load_knows_what_sglang_handed_out_and_sees_a_damaged_byte_in_each_pool() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT_RUN], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.endswith("done\n"), done.stderr


@given(
    page_bytes=st.integers(1, 40),
    vmm_page_bytes=st.integers(1, 40),
    layers=st.integers(1, 4),
    ids=st.sets(st.integers(1, 50)),
)
def test_the_footprint_is_that_of_every_byte_of_every_page(
    page_bytes: int, vmm_page_bytes: int, layers: int, ids: set[int]
) -> None:
    bytes_held = {each * page_bytes + offset for each in (0, *ids) for offset in range(page_bytes)}
    pages = {byte // vmm_page_bytes for byte in bytes_held}
    footprint = Footprint(page_bytes, vmm_page_bytes, layers)

    assert footprint.mapped_bytes(ids) == len(pages) * vmm_page_bytes * layers
