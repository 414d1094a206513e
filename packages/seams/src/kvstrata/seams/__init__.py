# SPDX-License-Identifier: Apache-2.0
"""Declare, apply and verify hooks on pinned upstream functions; fails closed."""

from .application import apply, verify
from .error import Reason, SeamError
from .hook import Hook, Kind, Pin, Seams

__all__ = [
    "Hook",
    "Kind",
    "Pin",
    "Reason",
    "SeamError",
    "Seams",
    "apply",
    "verify",
]
