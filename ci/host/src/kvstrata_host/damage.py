# SPDX-License-Identifier: Apache-2.0
"""Damage on purpose: restored pages are corrupted, so that a test can show that it would notice.

Off unless the server's environment says `KVSTRATA_HOST_DAMAGE=restored-pages`.
"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Protocol

import torch

logger = logging.getLogger(__name__)

VARIABLE = "KVSTRATA_HOST_DAMAGE"
RESTORED_PAGES = "restored-pages"
TARGET = "sglang.srt.managers.cache_controller.HiCacheController._reduce_prefetch_ack"

_DAMAGED = "kvstrata_host_damaged_tokens"
_SIGN_BIT = 0x80


class HostPool(Protocol):
    """What is used of SGLang's host pools."""

    page_size: int
    dtype: torch.dtype

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        """Addresses and sizes, in bytes, of the components of the pages at token indices."""


class Controller(Protocol):
    """What is used of SGLang's cache controller."""

    storage_host_pool: HostPool


class Operation(Protocol):
    """What is used of SGLang's prefetch operations."""

    host_indices: torch.Tensor


class Acknowledgement(Protocol):
    """What is used of SGLang's acknowledgement of a part of an operation."""

    operation: Operation
    completed_tokens: int | None


def requested() -> bool:
    """Whether the environment asks for damage; raises ValueError for an unknown kind."""
    value = os.environ.get(VARIABLE, "")
    if value not in {"", RESTORED_PAGES}:
        raise ValueError(f"{VARIABLE}={value!r}; allowed: {RESTORED_PAGES}, or unset it")
    return bool(value)


def damage_restored(result: None, controller: Controller, ack: Acknowledgement) -> None:
    """An AFTER hook for what ranks agree was restored: the pages since the last ack are damaged."""
    if ack.completed_tokens is None:
        return
    pool, operation = controller.storage_host_pool, ack.operation
    restored = operation.host_indices[getattr(operation, _DAMAGED, 0) : ack.completed_tokens]
    setattr(operation, _DAMAGED, ack.completed_tokens)
    negate(pool, restored)
    pages = restored.numel() // pool.page_size
    logger.warning("%s=%s: damaged %d pages", VARIABLE, RESTORED_PAGES, pages)


def negate(pool: HostPool, indices: torch.Tensor) -> None:
    """Flip the sign of every value in the pages at token indices.

    Values stay finite, which NaN from random bytes would not: damage that is easy to overlook.
    """
    if not indices.numel():
        return
    for address, size in zip(*pool.get_page_buffer_meta(indices), strict=True):
        memory = (ctypes.c_uint8 * size).from_address(address)
        values = torch.frombuffer(memory, dtype=torch.uint8).view(-1, pool.dtype.itemsize)
        values[:, -1] ^= _SIGN_BIT  # the sign is in the last byte of a little-endian float
