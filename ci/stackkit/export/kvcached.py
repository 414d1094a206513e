# SPDX-License-Identifier: Apache-2.0
"""What kvcached's repository asks of a contribution, beside its style."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .error import ExportError
from .style import Style

# As the `pyproject.toml` of its releases has it.
STYLE = Style(line_length=100, select=("F", "I"), first_party=("kvcached",))

_COPYRIGHT = "# SPDX-FileCopyrightText: Copyright contributors to the kvcached project\n"


def headed(text: str) -> str:
    """A Python file under kvcached's two lines of copyright and license."""
    return _COPYRIGHT + text


def instead(texts: Mapping[str, str]) -> Callable[[str], str]:
    """Texts with what stands in their place; each has to be there exactly once."""

    def change(text: str) -> str:
        for old, new in texts.items():
            if text.count(old) != 1:
                first = old.strip().splitlines()[0]
                reason = f"is there {text.count(old)} times"
                raise ExportError("our text", first, reason, "correct it in upstream/layer.py")
            text = text.replace(old, new)
        return text

    return change
