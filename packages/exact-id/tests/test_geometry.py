# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstrata.exact_id.geometry import PoolGeometry

MIB = 1 << 20

# Bytes of one page of each DeepSeek-V4 pool at 256 tokens a page, and the share of its ids that
# lie on two 2 MiB pages.
KNOWN = {
    "swa": (149_760, 0.0713),
    "c4": (37_440, 0.0178),
    "c128": (1_728, 0.00079),
    "indexer-fp8": (8_448, 0.0039),
    "indexer-fp4": (4_352, 0.00195),
    "uniform-fp8-c4": (32_768, 0.0),
    "aiter-fp4-payload": (4_096, 0.0),
    "aiter-fp4-scale": (256, 0.0),
}


def byte_by_byte(geometry: PoolGeometry, page_id: int) -> list[int]:
    first = page_id * geometry.page_bytes
    return sorted(
        {byte // geometry.vmm_page_bytes for byte in range(first, first + geometry.page_bytes)}
    )


geometries = st.builds(
    PoolGeometry,
    page_count=st.integers(1, 40),
    page_bytes=st.integers(1, 50),
    layer_count=st.integers(1, 3),
    vmm_page_bytes=st.integers(1, 40),
)


@given(geometry=geometries, data=st.data())
def test_an_id_lies_on_the_vmm_pages_that_its_bytes_lie_on(
    geometry: PoolGeometry, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, geometry.page_count)))

    found = geometry.vmm_pages_of(np.array(ids, dtype=np.int64)).tolist()

    assert found == [page for each in ids for page in byte_by_byte(geometry, each)]


@given(geometry=geometries, data=st.data())
def test_the_ids_on_a_vmm_page_are_those_that_lie_on_it(
    geometry: PoolGeometry, data: st.DataObject
) -> None:
    pages = data.draw(st.lists(st.integers(0, geometry.vmm_page_count - 1)))

    found = geometry.ids_on(np.array(pages, dtype=np.int64)).tolist()

    assert found == [
        each
        for each in range(1, geometry.row_count)
        if not set(pages).isdisjoint(byte_by_byte(geometry, each))
    ]


@given(geometry=geometries)
def test_the_straddling_ids_are_counted_exactly(geometry: PoolGeometry) -> None:
    straddling = [
        each for each in range(1, geometry.row_count) if len(byte_by_byte(geometry, each)) > 1
    ]

    assert geometry.straddling_count == len(straddling)


@given(geometry=geometries)
def test_the_virtual_memory_holds_every_row_and_no_spare_vmm_page(geometry: PoolGeometry) -> None:
    assert geometry.vmm_page_count == byte_by_byte(geometry, geometry.page_count)[-1] + 1
    assert geometry.layer_bytes - geometry.vmm_page_bytes < geometry.native_bytes
    assert geometry.native_bytes <= geometry.virtual_bytes
    assert geometry.floor_bytes == len(byte_by_byte(geometry, 0)) * geometry.bundle_bytes


@pytest.mark.parametrize(("page_bytes", "share"), KNOWN.values(), ids=KNOWN)
def test_the_pools_of_deepseek_v4_straddle_as_often_as_known(page_bytes: int, share: float) -> None:
    geometry = PoolGeometry(1_000_000, page_bytes, layer_count=1, vmm_page_bytes=2 * MIB)

    assert geometry.straddling_share == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize("name", ["page_count", "page_bytes", "layer_count", "vmm_page_bytes"])
def test_a_size_below_one_is_refused(name: str) -> None:
    sizes = {"page_count": 1, "page_bytes": 1, "layer_count": 1, "vmm_page_bytes": 1, name: 0}

    with pytest.raises(ValueError, match=f"{name} is 0"):
        PoolGeometry(**sizes)
