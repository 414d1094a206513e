# SPDX-License-Identifier: Apache-2.0
"""What has to be mapped, by the definition alone: nothing of the product computes it."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Footprint:
    """Rows of `page_bytes` in virtual memory that is mapped by `vmm_page_bytes` in each layer."""

    page_bytes: int
    vmm_page_bytes: int
    layers: int

    def mapped_bytes(self, ids: Iterable[int]) -> int:
        """Memory of the VMM pages on which row 0 or any byte of a page in `ids` lies."""
        pages = {
            page
            for each in (0, *ids)
            for page in range(
                each * self.page_bytes // self.vmm_page_bytes,
                ((each + 1) * self.page_bytes - 1) // self.vmm_page_bytes + 1,
            )
        }
        return len(pages) * self.vmm_page_bytes * self.layers
