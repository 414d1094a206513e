# SPDX-License-Identifier: Apache-2.0
"""What kvcached's repository asks of a contribution, beside its style."""

from __future__ import annotations

from .edits import AddElement, AddImport, Edit
from .style import Style

# As the `pyproject.toml` of its releases has it.
STYLE = Style(line_length=100, select=("F", "I"), first_party=("kvcached",))

_COPYRIGHT = "# SPDX-FileCopyrightText: Copyright contributors to the kvcached project\n"
_AUTOPATCH = "kvcached/integration/sglang/autopatch.py"


def registered(
    module: str, *patches: str, versions: str, behind: str, imports: tuple[str, ...] = ()
) -> tuple[Edit, ...]:
    """Patches of SGLang in kvcached's autopatch.

    Args:
        module: has the patches, and `imports` beside them.
        versions: the expression of the releases of SGLang that they are for.
        behind: the entry of the list that they follow.
    """
    return (
        *(
            AddElement(_AUTOPATCH, "_patch_sglang", behind, f"({patch}(), {versions})")
            for patch in patches
        ),
        *(AddImport(_AUTOPATCH, "", module, name) for name in (*patches, *imports)),
    )


def headed(text: str) -> str:
    """A Python file under kvcached's two lines of copyright and license."""
    return _COPYRIGHT + text
