# SPDX-License-Identifier: Apache-2.0
"""The stand-in does what a CUDA driver does with the calls that kvcached makes.

Each test makes the same calls of a real driver where there is one.
"""

from __future__ import annotations

import pytest

from .driver import INVALID_VALUE, OUT_OF_MEMORY, PAGE_BYTES, Driver, cuda, host, result_of

pytestmark = pytest.mark.integration


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def driver(request: pytest.FixtureRequest) -> Driver:
    found = host() if request.param == "host" else cuda()
    if found is None:
        pytest.skip("no CUDA driver and device here")
    return found


def test_device_zero_maps_memory_in_units_of_two_mebibytes(driver: Driver) -> None:
    assert driver.supports_mapping() == 1
    assert PAGE_BYTES % driver.granularity() == 0


def test_a_reserved_range_is_aligned_and_at_the_hint_where_that_is_free(driver: Driver) -> None:
    hint = driver.reserve(4)
    driver.address_free(hint, 4)

    first = driver.reserve(4, hint)
    second = driver.reserve(4, hint)

    assert first == hint
    assert second != hint
    assert second % PAGE_BYTES == 0
    driver.address_free(first, 4)
    driver.address_free(second, 4)


def test_two_ranges_over_one_allocation_are_the_same_bytes(driver: Driver) -> None:
    range_ = driver.reserve(2)
    handle = driver.create()
    driver.map_for_use(range_, handle)
    driver.map_for_use(range_ + PAGE_BYTES, handle)

    driver.write(range_ + 7, b"page")

    assert driver.read(range_ + PAGE_BYTES + 7, 4) == b"page"
    driver.unmap(range_, 2)
    driver.release(handle)
    driver.address_free(range_, 2)


def test_bytes_survive_while_an_allocation_is_mapped_nowhere(driver: Driver) -> None:
    range_ = driver.reserve(2)
    handle = driver.create()
    driver.map_for_use(range_, handle)
    driver.write(range_, b"kept")

    driver.unmap(range_)
    driver.map_for_use(range_ + PAGE_BYTES, handle)

    assert driver.read(range_ + PAGE_BYTES, 4) == b"kept"
    driver.unmap(range_ + PAGE_BYTES)
    driver.release(handle)
    driver.address_free(range_, 2)


def test_a_released_allocation_lives_until_it_is_unmapped(driver: Driver) -> None:
    range_ = driver.reserve(1)
    handle = driver.create()
    driver.map_for_use(range_, handle)
    driver.release(handle)
    taken = driver.free_bytes()

    driver.write(range_, b"alive")

    assert driver.read(range_, 5) == b"alive"
    driver.unmap(range_)
    assert driver.free_bytes() == taken + PAGE_BYTES
    driver.address_free(range_, 1)


def test_an_allocation_takes_its_size_from_the_free_memory_though_untouched(
    driver: Driver,
) -> None:
    before = driver.free_bytes()

    handle = driver.create(32)

    assert driver.free_bytes() == before - 32 * PAGE_BYTES
    driver.release(handle)
    assert driver.free_bytes() == before


def test_an_allocation_larger_than_the_device_is_out_of_memory(driver: Driver) -> None:
    before = driver.free_bytes()
    pages = driver.total_bytes() // PAGE_BYTES + 1

    assert result_of(lambda: driver.create(pages)) == OUT_OF_MEMORY

    assert driver.free_bytes() == before


def test_one_call_unmaps_several_neighbours(driver: Driver) -> None:
    range_ = driver.reserve(3)
    handles = [driver.create() for _ in range(3)]
    for index, handle in enumerate(handles):
        driver.map_for_use(range_ + index * PAGE_BYTES, handle)

    driver.unmap(range_, 3)

    for handle in handles:
        driver.release(handle)
    driver.address_free(range_, 3)


def test_a_mapped_range_is_neither_mapped_again_nor_freed(driver: Driver) -> None:
    range_ = driver.reserve(1)
    handle, other = driver.create(), driver.create()
    driver.map_for_use(range_, handle)
    driver.write(range_, b"kept")

    assert result_of(lambda: driver.map(range_, other)) == INVALID_VALUE
    assert result_of(lambda: driver.address_free(range_, 1)) == INVALID_VALUE

    assert driver.read(range_, 4) == b"kept"
    driver.unmap(range_)
    driver.release(handle)
    driver.release(other)
    driver.address_free(range_, 1)


def test_what_is_not_mapped_is_neither_unmapped_nor_made_accessible(driver: Driver) -> None:
    range_ = driver.reserve(2)
    handle = driver.create()
    driver.map_for_use(range_, handle)

    assert result_of(lambda: driver.unmap(range_ + PAGE_BYTES)) == INVALID_VALUE
    assert result_of(lambda: driver.unmap(range_, 2)) == INVALID_VALUE
    assert result_of(lambda: driver.allow(range_ + PAGE_BYTES)) == INVALID_VALUE

    driver.write(range_, b"still mapped")
    driver.unmap(range_)
    driver.release(handle)
    driver.address_free(range_, 2)


def test_part_of_a_mapping_is_not_unmapped(driver: Driver) -> None:
    range_ = driver.reserve(2)
    handle = driver.create(2)
    driver.map(range_, handle, 2)
    driver.allow(range_, 2)

    assert result_of(lambda: driver.unmap(range_)) == INVALID_VALUE

    driver.write(range_ + PAGE_BYTES, b"still mapped")
    driver.unmap(range_, 2)
    driver.release(handle)
    driver.address_free(range_, 2)


def test_memory_is_mapped_only_into_reserved_ranges_and_within_its_size(driver: Driver) -> None:
    range_ = driver.reserve(2)
    handle = driver.create()

    assert result_of(lambda: driver.map(range_ + 2 * PAGE_BYTES, handle)) == INVALID_VALUE
    assert result_of(lambda: driver.map(range_, handle, 2)) == INVALID_VALUE

    driver.release(handle)
    driver.address_free(range_, 2)


def test_sizes_are_whole_pages(driver: Driver) -> None:
    range_ = driver.reserve(1)
    handle = driver.create()

    assert result_of(lambda: driver.create(0)) == INVALID_VALUE
    assert result_of(lambda: driver.create(0.5)) == INVALID_VALUE
    assert result_of(lambda: driver.map(range_, handle, 0.25)) == INVALID_VALUE
    assert result_of(lambda: driver.reserve(0)) == INVALID_VALUE

    driver.release(handle)
    driver.address_free(range_, 1)


def test_a_range_is_freed_only_as_it_was_reserved(driver: Driver) -> None:
    range_ = driver.reserve(2)

    assert result_of(lambda: driver.address_free(range_, 1)) == INVALID_VALUE
    driver.address_free(range_, 2)
    assert result_of(lambda: driver.address_free(range_, 2)) == INVALID_VALUE


@pytest.mark.parametrize("result", [INVALID_VALUE, OUT_OF_MEMORY, 101, 304, 999])
def test_every_result_has_the_text_of_cuda(driver: Driver, result: int) -> None:
    texts = {
        INVALID_VALUE: "invalid argument",
        OUT_OF_MEMORY: "out of memory",
        101: "invalid device ordinal",
        304: "OS call failed or operation not supported on this OS",
        999: "unknown error",
    }
    assert driver.text_of(result) == texts[result]
