# SPDX-License-Identifier: Apache-2.0
"""Edits of upstream's files, as code: each finds its place by names, or is refused."""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import libcst as cst
from libcst.helpers import get_full_name_for_node

from .error import ExportError
from .places import Anchor, Definition, Tests, calls, code, definitions, holds, leads_to, lists_with

_NodeT = TypeVar("_NodeT", bound=cst.CSTNode)
_ListedT = TypeVar("_ListedT", cst.Arg, cst.Param, cst.BaseElement)

Refusal = Literal["missing", "changed", "ambiguous", "applied"]
"""Why an edit does not apply: its name is not there; what it looks for in it is not; there is more
than one; what it would add is there already."""

_FIXES: dict[Refusal, str] = {
    "missing": "find where it went, and move the edit there",
    "changed": "read what changed there, and write the edit anew",
    "ambiguous": "give the edit a narrower name",
    "applied": "set the slice's pull_request.status to merged, or drop the edit",
}


class EditError(ExportError):
    """An edit that does not apply."""

    def __init__(self, edit: Edit, refusal: Refusal, reason: str, hint: str = "") -> None:
        super().__init__(edit.file, edit.name, reason, hint or _FIXES[refusal])
        self.edit = edit
        self.refusal = refusal


@dataclass(frozen=True)
class Edit(ABC):
    """One change of one definition.

    Args:
        file: path in the tree.
        name: qualified name in the file; empty for the module itself.
    """

    file: str
    name: str

    def apply(self, module: cst.Module) -> cst.Module:
        """The changed file; raises EditError."""
        return self._change(module, self.target(module))

    def target(self, module: cst.Module) -> Definition:
        """The one definition of the name; raises EditError."""
        found = definitions(module, self.name)
        if not found:
            raise EditError(self, "missing", "not defined there")
        if len(found) > 1:
            raise EditError(self, "ambiguous", f"defined {len(found)} times")
        return found[0]

    @abstractmethod
    def _change(self, module: cst.Module, target: Definition) -> cst.Module: ...

    def _only(self, found: Sequence[_NodeT], what: str) -> _NodeT:
        if not found:
            raise EditError(self, "changed", f"{what} is not there")
        if len(found) > 1:
            raise EditError(self, "ambiguous", f"{what} is there {len(found)} times")
        return found[0]


@dataclass(frozen=True)
class Place:
    """Where statements are inserted.

    Args:
        at: beside a statement, or at the start of a body, after its docstring, or at its end.
    """

    at: Literal["start", "end", "before", "after"]
    anchor: Anchor | None = None


START = Place("start")
END = Place("end")


def before(anchor: Anchor) -> Place:
    return Place("before", anchor)


def after(anchor: Anchor) -> Place:
    return Place("after", anchor)


@dataclass(frozen=True)
class Insert(Edit):
    """Insert statements.

    Args:
        spaced: whether an empty line is between them and what stood there.
    """

    where: Place
    code: str
    spaced: bool = False

    def _change(self, module: cst.Module, target: Definition) -> cst.Module:
        if holds(target, self.code):
            raise EditError(self, "applied", "has these statements already")
        added = _statements(self.code)
        if self.where.anchor is not None:
            found = self._only(self.where.anchor.find(target), str(self.where.anchor))
            if self.where.at == "before":
                run = self._beside(
                    [_spaced(added[0]) if self.spaced else added[0], *added[1:]], [found]
                )
            else:
                run = self._beside([found], added)
            return _replaced(module, target, found, run)
        block = target if isinstance(target, cst.Module) else getattr(target, "body", None)
        if not isinstance(block, cst.Module | cst.IndentedBlock):
            raise EditError(self, "changed", "has no block of its own")
        body = list(block.body)
        at = len(body) if self.where.at == "end" else int(_has_docstring(body))
        if self.where.at == "end":
            run = self._beside(body, added)
        else:
            run = [*body[:at], *self._beside(added, body[at:])]
        changed = block.with_changes(body=run)
        if isinstance(changed, cst.Module):
            return changed
        return _replaced(module, target, block, [changed])

    def _beside(
        self, first: Sequence[cst.BaseStatement], second: Sequence[cst.BaseStatement]
    ) -> list[cst.BaseStatement]:
        """Statements one after the other, with an empty line between if they are to be spaced."""
        if not (self.spaced and first and second):
            return [*first, *second]
        return [*first, _spaced(second[0]), *second[1:]]


@dataclass(frozen=True)
class AddBranch(Edit):
    """Add an `elif` after another branch of the same chain."""

    behind: str
    condition: str
    code: str

    def _change(self, module: cst.Module, target: Definition) -> cst.Module:
        if Tests(self.condition).find(target):
            raise EditError(self, "applied", f"has a branch of {self.condition} already")
        found = self._only(Tests(self.behind).find(target), str(Tests(self.behind)))
        if not isinstance(found, cst.If):
            raise EditError(self, "changed", f"{self.behind} is no branch")
        branch = cst.If(
            cst.parse_expression(self.condition),
            cst.IndentedBlock(_statements(self.code)),
            orelse=found.orelse,
        )
        return _replaced(module, target, found, [found.with_changes(orelse=branch)])


@dataclass(frozen=True)
class AddParameter(Edit):
    """Add a parameter with a default after all others: `hint: str = ""`."""

    parameter: str

    def _change(self, module: cst.Module, target: Definition) -> cst.Module:
        if not isinstance(target, cst.FunctionDef):
            raise EditError(self, "changed", "is no function")
        parsed = cst.parse_statement(f"def f({self.parameter}): ...")
        if not isinstance(parsed, cst.FunctionDef):
            raise TypeError(self.parameter)
        (new,) = parsed.params.params
        old = target.params
        for each in (*old.posonly_params, *old.params, *old.kwonly_params):
            if each.name.value == new.name.value:
                raise EditError(self, "applied", f"has a parameter {new.name.value} already")
        field = "kwonly_params" if old.kwonly_params else "params"
        params = _appended(getattr(old, field), new)
        return _replaced(module, target, old, [old.with_changes(**{field: params})])


@dataclass(frozen=True)
class PassArgument(Edit):
    """Pass a keyword argument in the one call of a function: `hint=hint`."""

    function: str
    argument: str

    def _change(self, module: cst.Module, target: Definition) -> cst.Module:
        call = self._only(calls(target, self.function), f"the call of {self.function}")
        parsed = cst.parse_expression(f"f({self.argument})")
        if not isinstance(parsed, cst.Call) or parsed.args[0].keyword is None:
            raise TypeError(self.argument)
        keyword = parsed.args[0].keyword.value
        if any(_is_keyword(each, keyword) for each in call.args):
            raise EditError(self, "applied", f"passes {keyword} to {self.function} already")
        passed = call.with_changes(args=_appended(call.args, parsed.args[0]))
        return _replaced(module, target, call, [passed])


@dataclass(frozen=True)
class DropArgument(Edit):
    """Drop a keyword argument of the one call of a function."""

    function: str
    keyword: str

    def _change(self, module: cst.Module, target: Definition) -> cst.Module:
        call = self._only(calls(target, self.function), f"the call of {self.function}")
        kept = [each for each in call.args if not _is_keyword(each, self.keyword)]
        if len(kept) == len(call.args):
            raise EditError(self, "changed", f"{self.function} is not passed {self.keyword}")
        return _replaced(module, target, call, [call.with_changes(args=kept)])


@dataclass(frozen=True)
class AddElement(Edit):
    """Add an element to the list that has another one; both as they are written."""

    beside: str
    element: str

    def _change(self, module: cst.Module, target: Definition) -> cst.Module:
        found = self._only(lists_with(target, self.beside), f"a list with {self.beside}")
        if any(code(each.value) == self.element for each in found.elements):
            raise EditError(self, "applied", f"has {self.element} in the list already")
        new = cst.Element(cst.parse_expression(self.element))
        longer = found.with_changes(elements=_appended(found.elements, new))
        return _replaced(module, target, found, [longer])


@dataclass(frozen=True)
class AddImport(Edit):
    """Add `from module import name` at the top, or to the block for type checking alone."""

    module: str
    imported: str
    for_types: bool = False

    def _change(self, module: cst.Module, target: Definition) -> cst.Module:
        block: cst.Module | cst.IndentedBlock = module
        if self.for_types:
            guards = [s for s in module.body if isinstance(s, cst.If) and _is_for_types(s)]
            guard = self._only(guards, "if TYPE_CHECKING")
            if not isinstance(guard.body, cst.IndentedBlock):
                raise EditError(self, "changed", "if TYPE_CHECKING has no block")
            block = guard.body
        body = [each for each in block.body if not _is_pass(each)]
        known = [(i, _imported(each)) for i, each in enumerate(body) if _imported(each)]
        line = _statements(f"from {self.module} import {self.imported}")
        if any(body[i].deep_equals(line[0]) for i, _ in known):
            raise EditError(self, "applied", f"has {code(line[0])} already")
        # Where a sorted block has it: the sorter of the upstream does the rest.
        package = self.module.partition(".")[0]
        own = [(i, name) for i, name in known if name.partition(".")[0] == package]
        lower = [i for i, name in own if name < self.module]
        higher = [i for i, name in own if name > self.module]
        end = known[-1][0] + 1 if known else int(_has_docstring(body))
        at = lower[-1] + 1 if lower else higher[0] if higher else end
        changed = block.with_changes(body=[*body[:at], *line, *body[at:]])
        if isinstance(changed, cst.Module):
            return changed
        return _replaced(module, module, block, [changed])


@dataclass(frozen=True)
class Remove(Edit):
    """Remove a definition, or the one statement in it that an anchor describes."""

    anchor: Anchor | None = None

    def _change(self, module: cst.Module, target: Definition) -> cst.Module:
        if self.anchor is None:
            return _replaced(module, target, target, [])
        found = self._only(self.anchor.find(target), str(self.anchor))
        return _replaced(module, target, found, [])


def _statements(text: str) -> list[cst.BaseStatement]:
    """Statements with the comments above them, to be put into a block."""
    inside = textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
    parsed = cst.parse_statement(f"def f():\n{inside}\n")
    if not isinstance(parsed, cst.FunctionDef) or not isinstance(parsed.body, cst.IndentedBlock):
        raise TypeError(text)
    return list(parsed.body.body)


def _spaced(statement: cst.BaseStatement) -> cst.BaseStatement:
    """A statement with an empty line above it and its comments."""
    if not isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        return statement
    lines = statement.leading_lines
    if lines and lines[0].comment is None:
        return statement
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False), *lines])


def _is_keyword(argument: cst.Arg, keyword: str) -> bool:
    return argument.keyword is not None and argument.keyword.value == keyword


def _has_docstring(body: Sequence[cst.CSTNode]) -> bool:
    first = body[0] if body else None
    return (
        isinstance(first, cst.SimpleStatementLine)
        and isinstance(first.body[0], cst.Expr)
        and isinstance(first.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )


def _imported(statement: cst.CSTNode) -> str:
    """The module of a `from ... import`, or an empty text."""
    if isinstance(statement, cst.SimpleStatementLine):
        small = statement.body[0]
        if isinstance(small, cst.ImportFrom) and small.module is not None and not small.relative:
            return get_full_name_for_node(small.module) or ""
    return ""


def _appended(old: Sequence[_ListedT], new: _ListedT) -> list[_ListedT]:
    """One more at the end, with a comma after it where the last one had one."""
    if not old:
        return [new]
    *others, last = old
    had_comma = isinstance(last.comma, cst.Comma)
    between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [
        *others,
        last.with_changes(comma=between),
        new.with_changes(comma=last.comma if had_comma else cst.MaybeSentinel.DEFAULT),
    ]


def _is_for_types(guard: cst.If) -> bool:
    return get_full_name_for_node(guard.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _is_pass(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], cst.Pass
    )


def _replaced(
    module: cst.Module, target: Definition, old: cst.CSTNode, new: Sequence[cst.CSTNode]
) -> cst.Module:
    """The module with a node of a definition replaced; nothing beside the definition is visited."""

    class _Swap(cst.CSTTransformer):
        def on_leave(
            self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
        ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
            if original_node is not old:
                return updated_node
            if len(new) == 1:
                return cast("cst.CSTNodeT", new[0])
            nodes = cast("Sequence[cst.CSTNodeT]", new)
            return cst.FlattenSentinel(nodes) if nodes else cst.RemoveFromParent()

    def put(body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
        kept: list[cst.BaseStatement] = []
        for statement in body:
            if target is not module and not leads_to(statement, target):
                kept.append(statement)
            elif (
                isinstance(statement, cst.ClassDef)
                and statement is not target
                and isinstance(statement.body, cst.IndentedBlock)
            ):
                block = statement.body.with_changes(body=put(statement.body.body))
                kept.append(statement.with_changes(body=block))
            else:
                swapped = statement.visit(_Swap())
                if isinstance(swapped, cst.FlattenSentinel):
                    kept.extend(swapped)
                elif isinstance(swapped, cst.BaseStatement):
                    kept.append(swapped)
        return kept

    return module.with_changes(body=put(module.body))
