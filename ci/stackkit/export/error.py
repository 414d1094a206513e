# SPDX-License-Identifier: Apache-2.0
"""What stops an export: one line with the file, the name in it, the reason and the fix."""

from __future__ import annotations

from ..error import StackkitError


class ExportError(StackkitError):
    """Something that cannot be exported, applied or run as it is.

    Args:
        file: the file, folder or base in question.
        name: the qualified name in it; empty where it is about the whole of it.
    """

    def __init__(self, file: str, name: str, reason: str, fix: str) -> None:
        super().__init__(": ".join(filter(None, (file, name, f"{reason}; fix: {fix}"))))
        self.file = file
        self.name = name
        self.reason = reason
        self.fix = fix
