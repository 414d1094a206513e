# SPDX-License-Identifier: Apache-2.0
"""What kvcached's repository asks of a contribution, beside its style."""

from __future__ import annotations

from .style import Style

# As the `pyproject.toml` of its releases has it.
STYLE = Style(line_length=100, select=("F", "I"), first_party=("kvcached",))

_COPYRIGHT = "# SPDX-FileCopyrightText: Copyright contributors to the kvcached project\n"


def headed(text: str) -> str:
    """A Python file under kvcached's two lines of copyright and license."""
    return _COPYRIGHT + text
