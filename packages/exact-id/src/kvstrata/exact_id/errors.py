# SPDX-License-Identifier: Apache-2.0
"""Errors by what the caller can do next."""

from collections.abc import Sequence


class ExactIdError(Exception):
    """Root of every error that this package raises."""


class LeaseError(ExactIdError):
    """Ids were leased or released out of turn: a defect of the caller; nothing has changed.

    `ids` are some of the offending ones.
    """

    def __init__(self, action: str, ids: Sequence[int], problem: str) -> None:
        self.ids = tuple(ids)
        shown = ", ".join(map(str, self.ids[:8])) + (", ..." if len(self.ids) > 8 else "")
        super().__init__(f"cannot {action} page ids {shown}: {problem}")


class AllocationMiss(ExactIdError):  # noqa: N818 - an outcome that callers handle, not a fault
    """There is no physical memory for these pages now; nothing has changed. Free some, try again.

    `quarantined` are VMM pages of the pool that can never be used again.
    """

    def __init__(self, pool: str, problem: str, quarantined: Sequence[int] = ()) -> None:
        self.pool = pool
        self.quarantined = tuple(quarantined)
        super().__init__(f"pool {pool}: {problem}")


class NotReadyError(ExactIdError):
    """Not every selected pool has been made yet, so none may be touched."""


class PoolFailedError(ExactIdError):
    """What is mapped is no longer known, or a pool could not be made: stop the engine."""


class SetupError(ExactIdError):
    """A setting has to be changed before the server can start.

    Args:
        setting: the setting as the operator writes it.
        value: the value that was seen.
        allowed: what would have been accepted.
        fix: what to do, as one sentence.
    """

    def __init__(self, setting: str, value: object, allowed: str, fix: str) -> None:
        self.setting = setting
        self.value = value
        self.allowed = allowed
        self.fix = fix
        super().__init__(f"{setting} is {value!r}; allowed: {allowed}. {fix}")
