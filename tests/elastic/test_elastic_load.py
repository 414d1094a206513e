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
from elastic.footprint import Footprint
from elastic.load import Load, Wave

model = make_model(Size(full_pages=256, swa_pages=64))
geometry = model.managed.geometry
footprint = Footprint(geometry.page_bytes, geometry.vmm_page_bytes, geometry.layer_count)
load = Load(model, Wave(period_steps=8, crest=2), seed=3)
for step in range(3):
    load.step(step)
    assert model.managed.mapped_bytes == footprint.mapped_bytes(load.live_ids)
assert load.running and model.live_pages == len(list(load.live_ids))

damaged = load.running[0].live[-1]
model.rows[1][damaged, 7] += 1
while load.running:
    load.step(step, arrivals=False)
    assert model.managed.mapped_bytes == footprint.mapped_bytes(load.live_ids)
assert load.finished == load.requests
assert load.pages_damaged == 1, load.pages_damaged
assert model.live_pages == 0
assert model.managed.mapped_bytes == geometry.floor_bytes
print("done")
"""


@pytest.mark.integration
def test_the_load_knows_what_sglang_handed_out_and_sees_one_damaged_byte() -> None:
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
