# SPDX-License-Identifier: Apache-2.0
"""Changes of our own texts where an upstream is to have others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .error import ExportError


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
