# SPDX-License-Identifier: Apache-2.0
"""A DRAM tier on huge pages: fewer of them to touch at start, and to look up in a copy."""

import mmap
from pathlib import Path

from kvstrata.kvcr.errors import ConfigError
from kvstrata.kvcr.extension import Extension

from .around import Around

_MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_ADVISED = ("madvise", "always")


class HugePages(Around):
    """Asks the kernel for transparent huge pages in the memory of the tier.

    Raises ConfigError where the kernel gives none.
    """

    def __init__(self, inner: Extension, mode_file: Path = _MODE) -> None:
        super().__init__(inner)
        mode = mode_file.read_text() if mode_file.is_file() else "[never]"
        mode = mode.partition("[")[2].partition("]")[0]
        if mode not in _ADVISED:
            raise ConfigError(
                setting="tuning.huge_pages",
                value=True,
                allowed=f"false, while {mode_file} is {mode!r}",
                fix=f"Write {_ADVISED[0]} to {mode_file}, or unset tuning.huge_pages.",
            )

    def allocate(self, size_bytes: int) -> mmap.mmap:
        memory = self.inner.allocate(size_bytes)
        memory.madvise(mmap.MADV_HUGEPAGE)
        return memory
