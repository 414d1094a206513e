# SPDX-License-Identifier: Apache-2.0
"""Physical memory under one pool, through kvcached's transactional calls."""

import logging
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from .errors import AllocationMiss, PoolFailedError
from .geometry import PoolGeometry, VmmPages
from .readiness import Barrier

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

# kvcached numbers its own elastic pools upwards from 0.
_group_ids = count(1 << 20)
_transaction_ids = count()


def start_kvcached(device: str) -> None:
    """Initialize kvcached for this process and device, once; its own elastic pools share it."""
    from kvcached.integration.sglang.interfaces import init_kvcached

    init_kvcached(device=device)


class Backing:
    """The tensors of one pool and which of its VMM pages have memory of their own.

    kvcached must have been started, with the layout that is not contiguous. A VMM page is mapped
    in all layers or in none. An address without memory reads as zero, and what is written there is
    seen at every other such address.
    """

    def __init__(self, name: str, geometry: PoolGeometry, device: str, barrier: Barrier) -> None:
        self.name = name
        self.geometry = geometry
        self.group_id = next(_group_ids)
        self._device = device
        self._barrier = barrier
        self._mapped = np.zeros(geometry.vmm_page_count, dtype=np.bool_)
        self._quarantined = np.zeros(geometry.vmm_page_count, dtype=np.bool_)
        self._overdue: set[int] = set()
        self.mapped_count = 0
        """VMM pages that have memory."""
        self.usable_count = geometry.vmm_page_count
        """VMM pages that have memory or can get some."""

    def create(self, dtype: "torch.dtype") -> "list[torch.Tensor]":
        """Reserve the virtual memory; returns, for each layer, rows of `page_bytes` as `dtype`.

        Raises PoolFailedError if kvcached made something else than was asked for.
        """
        import torch
        from kvcached import vmm_ops

        geometry = self.geometry
        layers: Sequence[torch.Tensor] = vmm_ops.create_kv_tensors(
            size=geometry.layer_bytes,
            dtype_size=1,
            dev_str=self._device,
            num_layers=geometry.layer_count,
            num_kv_buffers=1,
            group_id=self.group_id,
            unified_pool=True,
        )
        sizes = [layer.numel() * layer.element_size() for layer in layers]
        if sizes != [geometry.layer_bytes] * geometry.layer_count or not (
            vmm_ops.kv_tensors_created(self.group_id)
        ):
            raise PoolFailedError(
                f"pool {self.name}: kvcached made layers of {sizes} bytes instead of "
                f"{geometry.layer_count} of {geometry.layer_bytes}"
            )
        row_bytes = geometry.row_count * geometry.page_bytes
        return [
            layer.view(torch.uint8)[:row_bytes].view(dtype).view(geometry.row_count, -1)
            for layer in layers
        ]

    def map(self, pages: VmmPages) -> None:
        """Give `pages` memory; those that have some keep it.

        Raises AllocationMiss, with nothing changed but what it says to be quarantined, or
        PoolFailedError.
        """
        self._barrier.check()
        new = pages[~self._mapped[pages]]
        if new.size and self._quarantined[new].any():
            lost = new[self._quarantined[new]].tolist()
            raise AllocationMiss(self.name, f"VMM pages {lost} are quarantined", lost)
        if new.size:
            self._map(new)
        if self._overdue:
            self._overdue.difference_update(pages.tolist())

    def unmap(self, pages: VmmPages) -> None:
        """Take the memory of `pages` away; nobody may read or write them any more.

        A page that kvcached could not unmap keeps its memory, for its next holder or until the
        next call. Raises PoolFailedError if it is not known what is mapped.
        """
        self._barrier.check()
        if self._overdue:
            pages = np.union1d(pages, np.fromiter(self._overdue, np.int64, len(self._overdue)))
        pages = pages[self._mapped[pages]]
        if pages.size and self._unmap(pages):
            self._mapped[pages] = False
            self.mapped_count -= pages.size
            self._overdue.clear()
        else:
            self._overdue.update(pages.tolist())

    @property
    def mapped_pages(self) -> VmmPages:
        """The VMM pages that have memory, ascending."""
        return np.flatnonzero(self._mapped)

    @property
    def mapped_bytes(self) -> int:
        """Physical memory of the pool, over all layers."""
        return self.mapped_count * self.geometry.bundle_bytes

    @property
    def quarantined_pages(self) -> VmmPages:
        return np.flatnonzero(self._quarantined)

    def is_mapped(self, pages: VmmPages) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
        return self._mapped[pages]

    def _offsets(self, pages: VmmPages) -> list[int]:
        offsets: list[int] = (pages * self.geometry.vmm_page_bytes).tolist()
        return offsets

    def _map(self, new: VmmPages) -> None:
        from kvcached import vmm_ops
        from kvcached.errors import MapQuarantinedError, StateConsistencyError

        offsets = self._offsets(new)
        try:
            succeeded, mapped = vmm_ops.map_to_kv_tensors_with_result(offsets, self.group_id)
        except MapQuarantinedError as error:
            # Which of them kvcached could not roll back is not known.
            self._quarantined[new] = True
            self.usable_count -= new.size
            _log.error("pool %s: VMM pages %s are lost: %s", self.name, new.tolist(), error)
            raise AllocationMiss(self.name, str(error), new.tolist()) from error
        except StateConsistencyError as error:
            raise self._failed(f"mapping ended in an unknown state: {error}", error) from error
        except RuntimeError as error:
            raise AllocationMiss(self.name, str(error)) from error
        if not succeeded or list(mapped) != offsets:
            raise self._failed(f"kvcached mapped {mapped} where {offsets} was asked for")
        self._mapped[new] = True
        self.mapped_count += new.size

    def _unmap(self, pages: VmmPages) -> bool:
        from kvcached import vmm_ops
        from kvcached.errors import StateConsistencyError

        transaction = f"exact-id-{next(_transaction_ids)}"
        try:
            prepared = vmm_ops.prepare_unmap_from_kv_tensors(
                self._offsets(pages), transaction, self.group_id
            )
        except StateConsistencyError as error:
            raise self._failed(f"unmapping ended in an unknown state: {error}", error) from error
        except RuntimeError as error:
            _log.warning("pool %s: %d VMM pages stay mapped: %s", self.name, pages.size, error)
            return False
        try:
            committed = prepared and vmm_ops.commit_unmap_from_kv_tensors(
                transaction, self.group_id
            )
        except RuntimeError as error:
            raise self._failed(f"memory could not be given back: {error}", error) from error
        if not committed:
            raise self._failed("kvcached did not unmap")
        return True

    def _failed(self, problem: str, cause: Exception | None = None) -> PoolFailedError:
        error = PoolFailedError(f"pool {self.name}: {problem}; restart the server")
        self._barrier.fail(str(error), cause)
        return error
