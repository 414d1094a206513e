# SPDX-License-Identifier: Apache-2.0
"""The one error that stops a server whose hooks are not all in place."""

from dataclasses import astuple, dataclass
from enum import Enum


class Reason(Enum):
    """Why a hook cannot be relied on."""

    UPSTREAM_MISSING = "upstream not installed"
    UNKNOWN_VERSION = "unknown version"
    TARGET_MISSING = "missing"
    DRIFTED = "drifted"
    TAKEN = "taken"
    """Another plugin has patched the target."""
    NOT_APPLIED = "not applied"
    REPLACED = "replaced"
    """Other code has put something else in the place of the applied hook."""


@dataclass(eq=False)
class SeamError(SystemExit):
    """Ends the process with one line on stderr and exit code 1.

    A SystemExit, since SGLang logs and forgets any Exception of a plugin. Python drops it silently
    in a thread other than the main one: apply and verify belong in the main thread.
    """

    slice: str
    target: str
    reason: Reason
    expected: str
    found: str
    remedy: str

    def __post_init__(self) -> None:
        super().__init__(str(self))

    def __str__(self) -> str:
        text = (
            f"{self.slice} cannot hook {self.target} ({self.reason.value}): "
            f"expected {self.expected}; found {self.found}. {self.remedy}"
        )
        return " ".join(text.split())

    def __reduce__(self) -> tuple[type["SeamError"], tuple[object, ...]]:
        return type(self), astuple(self)
