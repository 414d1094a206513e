# SPDX-License-Identifier: Apache-2.0
"""Names upstream: imports, texts and comments."""

import pytest

from stackkit.export import ExportError, Names
from stackkit.export.readme import readme

NAMES = Names(
    {"kvstrata.kvcr": "host.kvcr", "tests.memory": "host.test.memory"}, {"kvstrata": "host"}
)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("from . import a", "from host.kvcr import a"),
        ("from .a import b as c", "from host.kvcr.a import b as c"),
        (
            "from kvstrata.kvcr import (\n    a,\n    b,\n)",
            "from host.kvcr import (\n    a,\n    b,\n)",
        ),
        ("import kvstrata.kvcr.a", "import host.kvcr.a"),
        ("from kvstrata_host import a", "from kvstrata_host import a"),
        ("from kvcr import KVCR", "from kvcr import KVCR"),
        ('x = "kvstrata.kvcr.a:load"', 'x = "host.kvcr.a:load"'),
        ('x = f"kvstrata-{y}"', 'x = f"host-{y}"'),
        ('x = "kvstrata_host"', 'x = "kvstrata_host"'),
        ("x = 1  # as kvstrata has it", "x = 1  # as host has it"),
        ("x = 1  # type: ignore[misc]  # no types", "x = 1"),
        ("x = 1  # noqa: BLE001 - it raises anything", "x = 1  # it raises anything"),
        ("x = 1  # noqa: F401", "x = 1  # noqa: F401"),
        ("x = 1  # noqa: S101, F401", "x = 1  # noqa: F401"),
    ],
)
def test_a_line_has_its_name_upstream(ours: str, theirs: str) -> None:
    assert NAMES.python(f"{ours}\n", "kvstrata.kvcr") == f"{theirs}\n"


def test_modules_that_move_apart_are_imported_apart() -> None:
    names = Names({"tests.a": "x.a", "tests.b": "y.b"})
    assert names.python("from . import a, b\n", "tests") == "from x import a\nfrom y import b\n"


README = """\
# kvstrata-a

Top.

## One

<!-- begin one -->
| a | 1 |
| b | 2 |
<!-- end one -->

## Two

Text.
"""


def test_sections_of_a_readme_stand_below_another_top() -> None:
    change = readme("# A", ("One",), without=("| b",), instead={"| 1 |": "| one |"})
    assert change(README) == "# A\n\n## One\n\n| a | one |\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sections": ("Three",)}, "README.md: Three: no such section"),
        ({"sections": ("One",), "without": ("| c",)}, "no line starts so"),
        ({"sections": ("One",), "instead": {"|": "!"}}, "is there 6 times"),
    ],
)
def test_a_readme_that_changed_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        readme("# A", **given)(README)  # type: ignore[arg-type]  # as given
