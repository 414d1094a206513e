# SPDX-License-Identifier: Apache-2.0
"""An allocation that misses under pressure, and the same one after memory was freed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Miss:
    """What was seen.

    Args:
        cause: what was short.
        pages: how many full pages the request asked for.
        missed: whether SGLang's allocator returned None.
        is_untouched: whether free lists in their order, mapping, leases and mapped pages were
            exactly as before.
        allocations: what the driver allocated during the call, all of which went back.
        pages_freed: full pages of the request that then ended.
        succeeded: whether the same request got its pages after that, with the cause still there.
    """

    cause: str
    pages: int
    missed: bool
    is_untouched: bool
    allocations: int
    pages_freed: int
    succeeded: bool
