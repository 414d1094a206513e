# SPDX-License-Identifier: Apache-2.0
"""Reads and steers the memory under `kvcached==<version>+host`.

That build of kvcached runs its code for GPUs over host memory: `ci/host/kvcached_host` stands in
for the CUDA driver. Here are its counters, its budget of physical memory, and failures on demand.
All of it is the state of the present process.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module


class VmmError(RuntimeError):
    """No host build of kvcached in this environment, or a failure that was never met."""


class Call(enum.IntEnum):
    """A call of the driver, as kvcached makes it."""

    RESERVE = 0
    ADDRESS_FREE = 1
    CREATE = 2
    RELEASE = 3
    MAP = 4
    UNMAP = 5
    SET_ACCESS = 6
    MEMORY_INFO = 7
    SYNCHRONIZE = 8


class Result(enum.IntEnum):
    """What a failing call returns."""

    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    UNKNOWN = 999


@dataclass(frozen=True)
class State:
    """What the driver has done and holds.

    `calls` and `failures` count since the process started; a call that failed is in both.
    `created_bytes` is physical memory as a GPU would charge it, whole allocations, and
    `committed_bytes` what of it was touched, as the kernel counts it. `mapped_bytes` is virtual:
    kvcached maps one zero page at every address that has no page of its own.
    """

    calls: Mapping[Call, int]
    failures: Mapping[Call, int]
    budget_bytes: int
    created_bytes: int
    allocations: int
    mapped_bytes: int
    reserved_bytes: int
    committed_bytes: int


class _State(ctypes.Structure):
    _fields_ = (
        ("calls", ctypes.c_uint64 * len(Call)),
        ("failures", ctypes.c_uint64 * len(Call)),
        ("budget_bytes", ctypes.c_uint64),
        ("created_bytes", ctypes.c_uint64),
        ("allocations", ctypes.c_uint64),
        ("mapped_bytes", ctypes.c_uint64),
        ("reserved_bytes", ctypes.c_uint64),
        ("committed_bytes", ctypes.c_uint64),
    )


def state() -> State:
    """The present state; raises VmmError without a host build of kvcached."""
    raw = _State()
    if _driver().kvstrata_vmm_read(ctypes.byref(raw), ctypes.sizeof(raw)) != 0:
        raise VmmError(
            "kvcached was built from another state of ci/host/kvcached_host; "
            "fix: nox -s build-kvcached-host"
        )
    return State(
        calls={call: int(raw.calls[call]) for call in Call},
        failures={call: int(raw.failures[call]) for call in Call},
        budget_bytes=raw.budget_bytes,
        created_bytes=raw.created_bytes,
        allocations=raw.allocations,
        mapped_bytes=raw.mapped_bytes,
        reserved_bytes=raw.reserved_bytes,
        committed_bytes=raw.committed_bytes,
    )


@contextmanager
def budget(size_bytes: int) -> Iterator[None]:
    """Let the device have `size_bytes` of physical memory inside the block.

    It may be less than what is in use: then nothing is free until enough was given back.
    """
    before = state().budget_bytes
    set_budget(size_bytes)
    try:
        yield
    finally:
        set_budget(before)


def set_budget(size_bytes: int) -> None:
    """Let the device have `size_bytes` of physical memory from now on; 8 GiB at first."""
    if size_bytes < 0:
        raise VmmError(f"a budget of {size_bytes} bytes; it must be 0 or more")
    _driver().kvstrata_vmm_set_budget(size_bytes)


@contextmanager
def fail_at(call: Call, *nths: int, result: Result = Result.OUT_OF_MEMORY) -> Iterator[None]:
    """Fail the calls number `nths` of one kind, counted from the start of the block, at 1.

    Without numbers, the first. A failing call does nothing and returns `result`. Blocks of
    different kinds nest. Raises VmmError if the block ends before all its failures came.
    """
    driver = _driver()
    wanted = nths or (1,)
    if min(wanted) < 1:
        raise VmmError(f"cannot fail call {min(wanted)} of {call.name}; the first one is 1")
    for nth in wanted:
        driver.kvstrata_vmm_fail(call, nth, result)
    try:
        yield
    except BaseException:
        driver.kvstrata_vmm_forget_failures(call)
        raise
    unmet = driver.kvstrata_vmm_forget_failures(call)
    if unmet:
        raise VmmError(f"{unmet} of the failures asked of {call.name} never came")


@cache
def _driver() -> ctypes.CDLL:
    extension = import_module("kvcached._C")
    driver = ctypes.CDLL(extension.__file__)
    if not hasattr(driver, "kvstrata_vmm_read"):
        raise VmmError(
            "the kvcached of this environment is not the host build; fix: "
            "nox -s build-kvcached-host and install its wheel"
        )
    driver.kvstrata_vmm_set_budget.argtypes = [ctypes.c_uint64]
    driver.kvstrata_vmm_set_budget.restype = None
    driver.kvstrata_vmm_fail.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
    driver.kvstrata_vmm_forget_failures.argtypes = [ctypes.c_int]
    driver.kvstrata_vmm_forget_failures.restype = ctypes.c_uint64
    return driver
