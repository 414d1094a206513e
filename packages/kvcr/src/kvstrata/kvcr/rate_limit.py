# SPDX-License-Identifier: Apache-2.0
"""Saying something often enough to be seen and not so often that nothing else is."""

import time
from dataclasses import dataclass, field


@dataclass
class RateLimit:
    """Lets one message through per interval and counts the others."""

    interval_seconds: float
    suppressed: int = 0
    _next: float = field(default=0.0, init=False)

    def admits(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            self.suppressed += 1
            return False
        self._next = now + self.interval_seconds
        return True
