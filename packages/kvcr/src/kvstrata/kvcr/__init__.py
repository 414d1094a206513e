# SPDX-License-Identifier: Apache-2.0
"""KVCR as an L3 backend of SGLang's HiCache.

Nothing here imports SGLang, KVCR or NIXL: the package is importable where they are missing.
"""

from .config import KvcrConfig
from .errors import ConfigError, KvcrError, MissingDependencyError, StartupError

__all__ = ["ConfigError", "KvcrConfig", "KvcrError", "MissingDependencyError", "StartupError"]
