# SPDX-License-Identifier: Apache-2.0
"""What the demo is doing, with the time since it began."""

import time

from rich.console import Console
from rich.text import Text


class Progress:
    """Writes one line per step; servers may report from threads."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def step(self, who: str, message: str, *, style: str = "") -> None:
        line = Text(f"[{self.elapsed_s:6.1f} s] ", style="dim")
        line.append(f"{who:<9} ", style="bold")
        line.append(message, style=style)
        self._console.print(line, soft_wrap=True)

    def starting(self, name: str, message: str, *, elapsed_s: float) -> None:
        """For a server that starts; its own time is left out, the demo's says the same."""
        del elapsed_s
        self.step(f"replica {name}", message)
