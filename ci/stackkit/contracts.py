# SPDX-License-Identifier: Apache-2.0
"""The layers of the stacks as contracts of import-linter."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

from .stack import Stacks


def write(stacks: Stacks, path: Path, *, tools: tuple[str, ...]) -> None:
    """Forbid each slice to import a slice that it does not require directly, or any of `tools`."""
    config = ConfigParser()
    slices = list(stacks.slices.values())
    modules = [*(entry.module for entry in slices), *tools]
    config["importlinter"] = {"root_packages": _lines(modules)}
    for entry in slices:
        allowed = {entry.id, *entry.requires}
        forbidden = [other.module for other in slices if other.id not in allowed]
        config[f"importlinter:contract:{entry.id}"] = {
            "name": f"{entry.module} imports only the slices that it requires",
            "type": "forbidden",
            "source_modules": _lines([entry.module]),
            "forbidden_modules": _lines([*forbidden, *tools]),
            "allow_indirect_imports": "true",
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        config.write(file)


def _lines(values: list[str]) -> str:
    return "\n" + "\n".join(values)
