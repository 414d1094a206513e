# SPDX-License-Identifier: Apache-2.0
"""Physical memory for DeepSeek-V4 KV pools that follows SGLang's own page ids, over kvcached.

Nothing here imports SGLang, kvcached or torch: the package is importable where they are missing.
"""

from .errors import (
    AllocationMiss,
    ExactIdError,
    LeaseError,
    NotReadyError,
    PoolFailedError,
    SetupError,
)
from .geometry import PoolGeometry
from .ledger import LeaseLedger
from .limits import LimitState, LimitStatus
from .ownership import Claim, Ownership, claim
from .transaction import IdSpace, ManagedPools

__all__ = [
    "AllocationMiss",
    "Claim",
    "ExactIdError",
    "IdSpace",
    "LeaseError",
    "LeaseLedger",
    "LimitState",
    "LimitStatus",
    "ManagedPools",
    "NotReadyError",
    "Ownership",
    "PoolFailedError",
    "PoolGeometry",
    "SetupError",
    "claim",
]
