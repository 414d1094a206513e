# SPDX-License-Identifier: Apache-2.0
"""The calls that kvcached makes of a CUDA driver: of the stand-in, or of a real one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

PAGE_BYTES = 2 << 20
INVALID_VALUE, OUT_OF_MEMORY = 1, 2


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Prop(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", Location),
        ("win32_handle_meta_data", ctypes.c_void_p),
        ("alloc_flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class CudaError(RuntimeError):
    def __init__(self, call: str, result: int) -> None:
        super().__init__(f"{call} returned {result}")
        self.result = result


class Driver:
    """Raises CudaError for each result but success. Addresses and handles are ints."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise CudaError(name, result)

    def granularity(self, *, device: int = 0) -> int:
        size = ctypes.c_size_t()
        self._call("cuMemGetAllocationGranularity", ctypes.byref(size), _prop(device), 0)
        return size.value

    def supports_mapping(self, *, device: int = 0) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), 102, device)
        return value.value

    def device(self) -> int:
        value = ctypes.c_int(-1)
        self._call("cudaGetDevice", ctypes.byref(value))
        return value.value

    def set_device(self, device: int) -> None:
        self._call("cudaSetDevice", device)

    def free(self, address: int) -> None:
        self._call("cudaFree", ctypes.c_void_p(address))

    def read_state(self, *, size_bytes: int) -> int:
        """What kvstrata_vmm_read says to a structure of this size; for the stand-in alone."""
        room = ctypes.create_string_buffer(4096)
        result: int = self._library.kvstrata_vmm_read(room, ctypes.c_size_t(size_bytes))
        return result

    def text_of(self, result: int) -> str:
        text = ctypes.c_char_p()
        self._call("cuGetErrorString", result, ctypes.byref(text))
        return (text.value or b"").decode()

    def reserve(self, pages: float, hint: int = 0) -> int:
        address = ctypes.c_uint64()
        size = ctypes.c_size_t(int(pages * PAGE_BYTES))
        alignment = ctypes.c_size_t(PAGE_BYTES)
        flags = ctypes.c_uint64(0)
        self._call(
            "cuMemAddressReserve",
            ctypes.byref(address),
            size,
            alignment,
            ctypes.c_uint64(hint),
            flags,
        )
        return address.value

    def address_free(self, address: int, pages: int) -> None:
        self._call("cuMemAddressFree", ctypes.c_uint64(address), _size(pages))

    def create(self, pages: float = 1, *, device: int = 0) -> int:
        handle = ctypes.c_uint64()
        flags = ctypes.c_uint64(0)
        self._call("cuMemCreate", ctypes.byref(handle), _size(pages), _prop(device), flags)
        return handle.value

    def release(self, handle: int) -> None:
        self._call("cuMemRelease", ctypes.c_uint64(handle))

    def map(self, address: int, handle: int, pages: float = 1) -> None:
        offset, flags = ctypes.c_size_t(0), ctypes.c_uint64(0)
        arguments = (ctypes.c_uint64(address), _size(pages), offset, ctypes.c_uint64(handle), flags)
        self._call("cuMemMap", *arguments)

    def unmap(self, address: int, pages: float = 1) -> None:
        self._call("cuMemUnmap", ctypes.c_uint64(address), _size(pages))

    def synchronize(self) -> None:
        self._call("cudaDeviceSynchronize")

    def allow(self, address: int, pages: int = 1) -> None:
        access = ctypes.byref(Access(Location(1, 0), 3))
        one = ctypes.c_size_t(1)
        self._call("cuMemSetAccess", ctypes.c_uint64(address), _size(pages), access, one)

    def map_for_use(self, address: int, handle: int) -> None:
        self.map(address, handle)
        self.allow(address)

    def free_bytes(self) -> int:
        return self._memory_info()[0]

    def total_bytes(self) -> int:
        return self._memory_info()[1]

    def _memory_info(self) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call(self._memory_info_name, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    _memory_info_name = "cudaMemGetInfo"

    def write(self, address: int, content: bytes) -> None:
        ctypes.memmove(address, content, len(content))

    def read(self, address: int, count: int) -> bytes:
        return ctypes.string_at(address, count)


class CudaDriver(Driver):
    """A real driver: bytes travel by its copies."""

    _memory_info_name = "cuMemGetInfo_v2"

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)

    def write(self, address: int, content: bytes) -> None:
        size = ctypes.c_size_t(len(content))
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), content, size)

    def read(self, address: int, count: int) -> bytes:
        content = ctypes.create_string_buffer(count)
        self._call("cuMemcpyDtoH_v2", content, ctypes.c_uint64(address), ctypes.c_size_t(count))
        return content.raw


def host() -> Driver:
    return Driver(ctypes.CDLL(import_module("kvcached._C").__file__))


def cuda() -> Driver | None:
    """The driver of this machine, if it has one."""
    try:
        return CudaDriver(ctypes.CDLL("libcuda.so.1"))
    except (OSError, CudaError):
        return None


def result_of(call: Callable[[], object]) -> int:
    try:
        call()
    except CudaError as error:
        return error.result
    return 0


def _size(pages: float) -> ctypes.c_size_t:
    return ctypes.c_size_t(int(pages * PAGE_BYTES))


def _prop(device: int) -> Any:
    return ctypes.byref(Prop(1, 0, Location(1, device), None))
