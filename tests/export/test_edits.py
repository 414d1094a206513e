# SPDX-License-Identifier: Apache-2.0
"""Edits: what they make of a file, and when they refuse it."""

import ast

import libcst as cst
import pytest

from stackkit.export import (
    END,
    START,
    AddBranch,
    AddElement,
    AddImport,
    AddParameter,
    Assigns,
    Calls,
    DropArgument,
    Edit,
    EditError,
    Imports,
    Insert,
    PassArgument,
    Remove,
    after,
    before,
)

from .small import STORE

FILE = "shop/store.py"


def edited(edit: Edit, source: str = STORE) -> str:
    return edit.apply(cst.parse_module(source)).code


def changed_lines(edit: Edit, source: str = STORE) -> list[str]:
    """The lines that an edit adds, with a plus, and those that it takes away, with a minus."""
    old, new = source.splitlines(), edited(edit, source).splitlines()
    added = [f"+{line}" for line in new if new.count(line) > old.count(line)]
    return added + [f"-{line}" for line in old if old.count(line) > new.count(line)]


EDITS: dict[str, tuple[Edit, list[str]]] = {
    "a statement after another": (
        Insert(FILE, "Store.put", after(Calls("self.check")), "self.mark(good)"),
        ["+        self.mark(good)"],
    ),
    "a statement before another": (
        Insert(FILE, "Store.put", before(Calls("self.goods.append")), "# Why.\nself.mark(good)"),
        ["+        # Why.", "+        self.mark(good)"],
    ),
    "a statement behind the docstring": (
        Insert(FILE, "Store.open", START, "self.log(kind)"),
        ["+        self.log(kind)"],
    ),
    "a statement at the end of a module": (
        Insert(FILE, "", END, "STORE = Store()"),
        ["+STORE = Store()"],
    ),
    "a branch": (
        AddBranch(FILE, "Store.open", 'kind == "shelf"', 'kind == "box"', 'return "a box"'),
        ['+        elif kind == "box":', '+            return "a box"'],
    ),
    "an element": (
        AddElement(FILE, "KINDS", '"box"', '"bin"'),
        ['+KINDS = ["shelf", "box", "bin"]', '-KINDS = ["shelf", "box"]'],
    ),
    "an import": (
        AddImport(FILE, "", "shop.a", "b"),
        ["+from shop.a import b"],
    ),
    "nothing but a removal": (
        Remove(FILE, "Store.put", Calls("self.check")),
        ["-        # Goods are checked first.", "-        self.check(good)"],
    ),
    "the removal of an import": (
        Remove(FILE, "", Imports("shop.goods")),
        ["-from shop.goods import Good"],
    ),
    "the removal of a name": (Remove(FILE, "KINDS"), ['-KINDS = ["shelf", "box"]']),
}


@pytest.mark.parametrize(("edit", "lines"), EDITS.values(), ids=EDITS)
def test_an_edit_changes_only_the_lines_that_it_is_about(edit: Edit, lines: list[str]) -> None:
    assert [line for line in changed_lines(edit) if line.strip("+-")] == lines


def test_an_argument_keeps_a_call_of_one_argument_per_line_as_it_is() -> None:
    source = edited(PassArgument(FILE, "Store.put", "self.wrap", "label=label"))
    call = cst.parse_module(source).code
    assert "label=label,\n" in call.replace(" ", "")
    assert ast_of(source) == ast_of(STORE.replace("place=place,\n", "place=place, label=label,\n"))


def test_a_parameter_comes_after_all_others() -> None:
    source = edited(AddParameter(FILE, "Store.put", 'label: str = ""'))
    assert 'def put(self, good: Good, place: str, label: str = "") -> None:' in source


def test_a_dropped_argument_is_the_only_thing_that_is_dropped() -> None:
    source = edited(DropArgument(FILE, "Store.put", "self.wrap", "place"))
    assert ast_of(source) == ast_of(STORE.replace("place=place,\n", ""))


def ast_of(source: str) -> str:
    return ast.dump(ast.parse(source))


@pytest.mark.parametrize(("edit", "lines"), EDITS.values(), ids=EDITS)
def test_an_edit_that_was_made_is_refused_the_second_time(edit: Edit, lines: list[str]) -> None:
    once = edited(edit)
    with pytest.raises(EditError) as refused:
        edited(edit, once)
    gone = isinstance(edit, Remove)
    assert refused.value.refusal in ({"missing", "changed"} if gone else {"applied"})


REFUSED: dict[str, tuple[Edit, str, str]] = {
    "no such name": (Remove(FILE, "Store.pop"), "missing", "Store.pop: not defined there"),
    "no such statement": (
        Insert(FILE, "Store.put", after(Calls("self.weigh")), "pass"),
        "changed",
        "the call of self.weigh is not there",
    ),
    "no such argument": (
        DropArgument(FILE, "Store.put", "self.wrap", "paper"),
        "changed",
        "self.wrap is not passed paper",
    ),
    "no such call": (PassArgument(FILE, "Store.open", "self.wrap", "a=1"), "changed", "self.wrap"),
    "no such list": (AddElement(FILE, "KINDS", '"bin"', '"box"'), "changed", 'a list with "bin"'),
    "no such branch": (
        AddBranch(FILE, "Store.open", 'kind == "bin"', 'kind == "box"', "pass"),
        "changed",
        'the branch of kind == "bin"',
    ),
    "not a function": (AddParameter(FILE, "KINDS", "a: int = 1"), "changed", "is no function"),
    "no guard": (
        AddImport(FILE, "", "shop.a", "b", for_types=True),
        "changed",
        "if TYPE_CHECKING is not there",
    ),
}


@pytest.mark.parametrize(("edit", "refusal", "said"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_one_line_with_file_name_reason_and_fix(
    edit: Edit, refusal: str, said: str
) -> None:
    with pytest.raises(EditError) as refused:
        edited(edit)
    text = str(refused.value)
    assert refused.value.refusal == refusal
    assert text.startswith(FILE)
    assert said in text
    assert "; fix: " in text
    assert "\n" not in text


def test_a_name_that_is_defined_twice_is_ambiguous() -> None:
    twice = STORE + "\n\nclass Store:\n    def put(self) -> None: ...\n"
    with pytest.raises(EditError, match=r"defined 2 times") as refused:
        edited(Remove(FILE, "Store.put"), twice)
    assert refused.value.refusal == "ambiguous"


def test_a_statement_that_is_there_twice_is_ambiguous() -> None:
    twice = STORE + "        self.check(good)\n"
    with pytest.raises(EditError, match=r"the call of self.check is there 2 times"):
        edited(Insert(FILE, "Store.put", after(Calls("self.check")), "pass"), twice)


def test_an_anchor_is_found_in_inner_blocks_and_not_in_what_holds_them() -> None:
    source = "def f(x):\n    for i in x:\n        try:\n            y = i\n"
    source += "        finally:\n            g()\n"
    made = edited(Insert(FILE, "f", after(Assigns("y")), "h()"), source)
    assert "            y = i\n            h()\n" in made
    made = edited(Insert(FILE, "f", before(Calls("g")), "h()"), source)
    assert "            h()\n            g()\n" in made


def test_statements_that_stand_there_in_another_format_count_as_there() -> None:
    source = "def f(x):\n    g(\n        x,\n    )\n"
    with pytest.raises(EditError, match=r"has these statements already"):
        edited(Insert(FILE, "f", END, "g(x)"), source)
    assert "h(x)" in edited(Insert(FILE, "f", END, "h(x)"), source)
