# SPDX-License-Identifier: Apache-2.0
"""Options for the performance of kvstrata-kvcr, each off unless it is asked for.

Nothing here imports SGLang, KVCR or NIXL: the package is importable where they are missing.
"""

from .config import TuningConfig

__all__ = ["TuningConfig"]
