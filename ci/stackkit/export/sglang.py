# SPDX-License-Identifier: Apache-2.0
"""What SGLang's repository asks of a contribution, beside its style."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from .edits import AddImport, Edit, Insert, after
from .places import Anchor
from .style import Style

STYLE = Style(line_length=88, select=("F401", "F821", "I"), first_party=("sglang",))
CPU_SUITE = "base-a-test-cpu"

_MAIN = """\


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
"""


class _LastImport(Anchor):
    def fits(self, statement: cst.BaseStatement) -> bool:
        return isinstance(statement, cst.SimpleStatementLine) and isinstance(
            statement.body[0], cst.Import | cst.ImportFrom
        )

    def find(self, target: cst.CSTNode) -> list[cst.BaseStatement]:
        body = target.body if isinstance(target, cst.Module) else ()
        imports: list[cst.BaseStatement] = [each for each in body if self.fits(each)]
        return imports[-1:]

    def __str__(self) -> str:
        return "the last import"


def registered(est_time: int) -> Callable[[str], str]:
    """Make a test file one of SGLang's CPU tests, which run as programs; seconds are a whole."""

    def change(text: str) -> str:
        call = f'register_cpu_ci(est_time={est_time}, suite="{CPU_SUITE}")'
        module = cst.parse_module(text)
        edits: list[Edit] = [
            Insert("", "", after(_LastImport()), f"import {name}")
            for name in ("pytest", "sys")
            if f"import {name}\n" not in text
        ]
        edits.append(Insert("", "", after(_LastImport()), call, spaced=True))
        edits.append(AddImport("", "", "sglang.test.ci.ci_register", "register_cpu_ci"))
        for edit in edits:
            module = edit.apply(module)
        return module.code.rstrip("\n") + "\n" + _MAIN

    return change
