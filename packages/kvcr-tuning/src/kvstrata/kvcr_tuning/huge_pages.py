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
        # Shared memory, which is what mmap gives by default, has a switch of its own in the kernel,
        # off as a rule. Private memory must not be copied on write while a device writes to it.
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_DONTFORK)
        memory.madvise(mmap.MADV_HUGEPAGE)
        return memory
