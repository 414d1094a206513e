# SPDX-License-Identifier: Apache-2.0
"""Declares the torchvision operators whose compiled extension cannot load without CUDA.

`kvstrata_host.pth` imports this module at every interpreter start, spawned processes included. The
finder costs nothing until torchvision is imported; where torchvision is absent, or its extension
did load, nothing is declared.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_NEEDS_OPERATORS = "torchvision._meta_registrations"
_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[object] = []


class SchemaFinder:
    """A meta path entry that finds no module; it acts once, when torchvision needs operators."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname == _NEEDS_OPERATORS:
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            declare_missing_operators()
        return None


def declare_missing_operators() -> tuple[str, ...]:
    """Declare the operators that nothing has declared yet, and return their names."""
    import torch

    namespace = torch.ops.torchvision
    missing = tuple(name for name in _OPERATORS if not hasattr(namespace, name))
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in missing:
            library.define(f"{name}{_SCHEMA}")  # type: ignore[no-untyped-call]
        _libraries.append(library)
    return missing


if not any(isinstance(finder, SchemaFinder) for finder in sys.meta_path):
    sys.meta_path.insert(0, SchemaFinder())
