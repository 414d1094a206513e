# SPDX-License-Identifier: Apache-2.0
"""Counters, budget and failures of the stand-in, and its memory as the kernel sees it."""

from __future__ import annotations

import importlib
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstrata_host import vmm
from kvstrata_host.vmm import Call, Result, VmmError

from .driver import INVALID_VALUE, OUT_OF_MEMORY, PAGE_BYTES, Driver, host, result_of

pytestmark = pytest.mark.integration


@pytest.fixture
def driver() -> Driver:
    return host()


@pytest.fixture
def page(driver: Driver) -> Iterator[tuple[int, int]]:
    """A reserved range of one page and an allocation of as much, mapped there for use."""
    address, handle = driver.reserve(1), driver.create()
    driver.map_for_use(address, handle)
    yield address, handle
    driver.unmap(address)
    driver.address_free(address, 1)


def test_each_call_is_counted_under_its_name(driver: Driver) -> None:
    def made(call: Call, make: Callable[[], object]) -> object:
        before = vmm.state()
        result = make()
        after = vmm.state()
        counted = {each for each in Call if after.calls[each] != before.calls[each]}
        assert counted == {call}
        assert after.calls[call] == before.calls[call] + 1
        assert after.failures == before.failures
        return result

    address = made(Call.RESERVE, lambda: driver.reserve(1))
    handle = made(Call.CREATE, driver.create)
    assert isinstance(address, int)
    assert isinstance(handle, int)
    made(Call.MAP, lambda: driver.map(address, handle))
    made(Call.SET_ACCESS, lambda: driver.allow(address))
    made(Call.MEMORY_INFO, driver.free_bytes)
    made(Call.SYNCHRONIZE, driver.synchronize)
    made(Call.UNMAP, lambda: driver.unmap(address))
    made(Call.RELEASE, lambda: driver.release(handle))
    made(Call.ADDRESS_FREE, lambda: driver.address_free(address, 1))


def test_the_state_follows_what_is_reserved_created_and_mapped(driver: Driver) -> None:
    start = vmm.state()

    def grown() -> tuple[int, int, int, int]:
        now = vmm.state()
        return (
            (now.reserved_bytes - start.reserved_bytes) // PAGE_BYTES,
            (now.created_bytes - start.created_bytes) // PAGE_BYTES,
            now.allocations - start.allocations,
            (now.mapped_bytes - start.mapped_bytes) // PAGE_BYTES,
        )

    address = driver.reserve(5)
    handle = driver.create(2)
    assert grown() == (5, 2, 1, 0)
    driver.map(address, handle, 2)
    driver.map(address + 2 * PAGE_BYTES, handle, 2)
    assert grown() == (5, 2, 1, 4)
    driver.release(handle)
    driver.unmap(address, 2)
    assert grown() == (5, 2, 1, 2)
    driver.unmap(address + 2 * PAGE_BYTES, 2)
    assert grown() == (5, 0, 0, 0)
    driver.address_free(address, 5)
    assert grown() == (0, 0, 0, 0)


def test_memory_is_committed_by_touch_and_goes_back_to_the_kernel(driver: Driver) -> None:
    address, handle = driver.reserve(8), driver.create(8)
    driver.map(address, handle, 8)
    driver.allow(address, 8)
    resident, committed = resident_shared_bytes(), vmm.state().committed_bytes

    driver.write(address, b"\x07" * (8 * PAGE_BYTES))

    assert resident_shared_bytes() == resident + 8 * PAGE_BYTES
    assert vmm.state().committed_bytes == committed + 8 * PAGE_BYTES
    driver.unmap(address, 8)
    assert resident_shared_bytes() == resident
    assert vmm.state().committed_bytes == committed + 8 * PAGE_BYTES
    driver.release(handle)
    assert vmm.state().committed_bytes == committed
    driver.address_free(address, 8)


def test_a_new_allocation_is_zero_though_its_memory_was_used_before(driver: Driver) -> None:
    address, first = driver.reserve(1), driver.create()
    driver.map_for_use(address, first)
    driver.write(address, b"secret")
    driver.unmap(address)
    driver.release(first)

    second = driver.create()
    driver.map_for_use(address, second)

    assert driver.read(address, 6) == bytes(6)
    driver.unmap(address)
    driver.release(second)
    driver.address_free(address, 1)


@pytest.mark.parametrize("steps", ["", "driver.map(address, driver.create())"])
def test_touching_what_is_not_mapped_for_use_is_a_fault(steps: str) -> None:
    """Of the process, as on a GPU it is of the kernel."""
    script = (
        "from tests.driver import host\n"
        f"driver = host(); address = driver.reserve(1); {steps}\n"
        "print('alive', flush=True); driver.read(address, 1)"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.stdout == "alive\n", done.stderr
    assert done.returncode == -11


def test_the_budget_is_what_the_device_has(driver: Driver, page: tuple[int, int]) -> None:
    used = vmm.state().created_bytes
    with vmm.budget(used + 2 * PAGE_BYTES):
        assert driver.total_bytes() == used + 2 * PAGE_BYTES
        assert driver.free_bytes() == 2 * PAGE_BYTES
        assert result_of(lambda: driver.create(3)) == OUT_OF_MEMORY
        handle = driver.create(2)
        assert driver.free_bytes() == 0
        assert result_of(driver.create) == OUT_OF_MEMORY
        driver.release(handle)
        with vmm.budget(0):
            assert driver.free_bytes() == 0
            driver.write(page[0], b"what is there stays")
        assert driver.free_bytes() == 2 * PAGE_BYTES
    driver.release(page[1])


def test_a_budget_ends_with_its_block_even_by_an_exception() -> None:
    before = vmm.state().budget_bytes
    with vmm.budget(PAGE_BYTES):
        assert vmm.state().budget_bytes == PAGE_BYTES
    assert vmm.state().budget_bytes == before
    with pytest.raises(ZeroDivisionError), vmm.budget(PAGE_BYTES):
        _ = 1 // 0
    assert vmm.state().budget_bytes == before
    with pytest.raises(VmmError, match="-1 bytes"):
        vmm.set_budget(-1)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_the_nth_call_fails_once_and_changes_nothing(nth: int, driver: Driver) -> None:
    before = vmm.state()
    with vmm.fail_at(Call.CREATE, nth, result=Result.UNKNOWN):
        handles: list[int] = []
        results = []
        for _ in range(3):
            created = vmm.state().created_bytes
            results.append(result_of(lambda: handles.append(driver.create())))
            grown = vmm.state().created_bytes - created
            assert grown == (0 if results[-1] else PAGE_BYTES)

    assert results == [Result.UNKNOWN if number == nth else 0 for number in (1, 2, 3)]
    assert vmm.state().calls[Call.CREATE] == before.calls[Call.CREATE] + 3
    assert vmm.state().failures[Call.CREATE] == before.failures[Call.CREATE] + 1
    for handle in handles:
        driver.release(handle)


@pytest.mark.parametrize("call", [Call.MAP, Call.SET_ACCESS, Call.UNMAP, Call.RELEASE])
def test_each_kind_of_call_can_fail_and_then_be_made(call: Call, driver: Driver) -> None:
    address, handle = driver.reserve(1), driver.create()
    steps: dict[Call, Callable[[], object]] = {
        Call.MAP: lambda: driver.map(address, handle),
        Call.SET_ACCESS: lambda: driver.allow(address),
        Call.UNMAP: lambda: driver.unmap(address),
        Call.RELEASE: lambda: driver.release(handle),
        Call.ADDRESS_FREE: lambda: driver.address_free(address, 1),
    }
    for step, make in steps.items():
        if step is call:
            before = vmm.state()
            with vmm.fail_at(call):
                assert result_of(make) == OUT_OF_MEMORY
            after = vmm.state()
            assert after.mapped_bytes == before.mapped_bytes
            assert after.created_bytes == before.created_bytes
        make()


def test_failures_of_several_kinds_and_numbers_are_asked_for_together(driver: Driver) -> None:
    with vmm.fail_at(Call.CREATE, 1, 3), vmm.fail_at(Call.RELEASE):
        assert result_of(driver.create) == OUT_OF_MEMORY
        handle = driver.create()
        assert result_of(driver.create) == OUT_OF_MEMORY
        assert result_of(lambda: driver.release(handle)) == OUT_OF_MEMORY
    driver.release(handle)


def test_a_failure_that_never_came_is_an_error(driver: Driver) -> None:
    never_came = "1 of the failures asked of MAP never came"
    with pytest.raises(VmmError, match=never_came), vmm.fail_at(Call.MAP):
        driver.free_bytes()
    address, handle = driver.reserve(1), driver.create()
    driver.map(address, handle)
    driver.release(handle)
    driver.unmap(address)
    driver.address_free(address, 1)


def test_a_failure_that_never_came_does_not_hide_another_error() -> None:
    with pytest.raises(ZeroDivisionError), vmm.fail_at(Call.MAP):
        _ = 1 // 0
    with pytest.raises(VmmError, match="cannot fail call 0 of MAP"), vmm.fail_at(Call.MAP, 0):
        pass


def test_a_handle_that_is_not_there_is_refused(driver: Driver) -> None:
    """A real driver may crash instead."""
    handle, address = driver.create(), driver.reserve(1)
    driver.release(handle)
    assert result_of(lambda: driver.release(handle)) == INVALID_VALUE
    assert result_of(lambda: driver.map(address, handle)) == INVALID_VALUE
    driver.address_free(address, 1)


def test_the_host_is_device_zero_and_no_other(driver: Driver) -> None:
    assert driver.device() == 0
    assert result_of(lambda: driver.set_device(0)) == 0
    assert result_of(lambda: driver.set_device(1)) == 101
    assert result_of(lambda: driver.supports_mapping(device=1)) == 101
    assert result_of(lambda: driver.granularity(device=1)) == INVALID_VALUE
    assert result_of(lambda: driver.create(device=1)) == INVALID_VALUE


def test_the_runtime_starts_and_has_no_memory_of_its_own_to_free(driver: Driver) -> None:
    assert result_of(lambda: driver.free(0)) == 0
    assert result_of(lambda: driver.free(PAGE_BYTES)) == INVALID_VALUE


def test_a_build_of_another_state_or_of_another_kind_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert host().read_state(size_bytes=8) == -1
    monkeypatch.setattr(vmm, "import_module", lambda name: importlib.import_module("posix_ipc"))
    with pytest.raises(VmmError, match="not the host build; fix: nox -s build-kvcached-host"):
        vmm._driver.__wrapped__()


def test_calls_come_from_many_threads(driver: Driver) -> None:
    start, failures = vmm.state(), queue.SimpleQueue[BaseException]()

    def use(rounds: int) -> None:
        try:
            address = driver.reserve(2)
            for number in range(rounds):
                handle = driver.create()
                driver.map_for_use(address, handle)
                driver.write(address, number.to_bytes(4, "little"))
                if driver.read(address, 4) != number.to_bytes(4, "little"):
                    raise AssertionError(f"round {number}: other bytes")
                driver.unmap(address)
                driver.release(handle)
            driver.address_free(address, 2)
        except BaseException as error:  # noqa: BLE001
            failures.put(error)

    threads = [threading.Thread(target=use, args=(200,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures.empty(), failures.get()
    end = vmm.state()
    assert (end.created_bytes, end.mapped_bytes, end.reserved_bytes) == (
        start.created_bytes,
        start.mapped_bytes,
        start.reserved_bytes,
    )
    assert end.calls[Call.MAP] == start.calls[Call.MAP] + 4 * 200


def resident_shared_bytes() -> int:
    """Resident pages of shared mappings of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssShmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssShmem in /proc/self/status")
