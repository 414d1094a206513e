# SPDX-License-Identifier: Apache-2.0
"""C4 KV of DeepSeek-V4 in memory that follows SGLang's full page ids.

Nothing here imports SGLang, kvcached or torch: the package is importable where they are missing.
"""

from .plugin import CLAIM

__all__ = ["CLAIM"]
