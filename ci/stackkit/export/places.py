# SPDX-License-Identifier: Apache-2.0
"""Where an edit goes: a definition by its qualified name, and a statement in it by what it does.

A statement is described by the identifiers that it uses, never by its text, and has to be the only
one of its description.
"""

from __future__ import annotations

import ast
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.helpers import get_full_name_for_node

Scope = cst.Module | cst.ClassDef | cst.FunctionDef
Definition = Scope | cst.SimpleStatementLine
Statement = cst.BaseStatement | cst.BaseSmallStatement
_Compound = cst.If | cst.For | cst.While | cst.With | cst.Try | cst.FunctionDef | cst.ClassDef


def definitions(module: cst.Module, name: str) -> list[Definition]:
    """All definitions of a qualified name: functions, classes and assigned names."""
    found: list[Definition] = [module]
    for part in filter(None, name.split(".")):
        found = [
            inner
            for outer in found
            if not isinstance(outer, cst.SimpleStatementLine)
            for inner in _named(outer, part)
        ]
    return found


def outlines(text: str, name: str) -> list[str]:
    """The definitions of a qualified name in a file's text, whatever their formatting."""
    found: list[ast.AST] = [ast.parse(text)]
    for part in filter(None, name.split(".")):
        found = [inner for outer in found for inner in _inner(outer, part)]
    return [ast.dump(each) for each in found]


def _inner(outer: ast.AST, part: str) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(outer):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == part:
                yield node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id == part for each in targets):
                yield node
        elif isinstance(node, ast.stmt):
            yield from _inner(node, part)


def code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node).strip()


class Anchor(ABC):
    """Describes one statement of a definition."""

    @abstractmethod
    def fits(self, statement: cst.BaseStatement) -> bool: ...

    @abstractmethod
    def __str__(self) -> str: ...

    def find(self, target: cst.CSTNode) -> list[cst.BaseStatement]:
        return [each for each in statements(target) if self.fits(each)]


@dataclass(frozen=True)
class Calls(Anchor):
    """The statement that calls a function, by its dotted name."""

    function: str

    def fits(self, statement: cst.BaseStatement) -> bool:
        return any(calls(part, self.function) for part in _own_parts(statement))

    def __str__(self) -> str:
        return f"the call of {self.function}"


@dataclass(frozen=True)
class Assigns(Anchor):
    """The statement that assigns a target, as it is written: `self.count`."""

    target: str

    def fits(self, statement: cst.BaseStatement) -> bool:
        if not isinstance(statement, cst.SimpleStatementLine):
            return False
        return any(self.target in _targets(small) for small in statement.body)

    def __str__(self) -> str:
        return f"the assignment of {self.target}"


@dataclass(frozen=True)
class Imports(Anchor):
    """The `from ... import` of a module, by its dotted name."""

    module: str

    def fits(self, statement: cst.BaseStatement) -> bool:
        small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        return (
            isinstance(small, cst.ImportFrom)
            and small.module is not None
            and get_full_name_for_node(small.module) == self.module
        )

    def __str__(self) -> str:
        return f"the import from {self.module}"


@dataclass(frozen=True)
class Tests(Anchor):
    """The `if` or `elif` with a condition, as it is written."""

    condition: str

    def fits(self, statement: cst.BaseStatement) -> bool:
        return isinstance(statement, cst.If) and code(statement.test) == self.condition

    def __str__(self) -> str:
        return f"the branch of {self.condition}"


def calls(node: cst.CSTNode, function: str) -> list[cst.Call]:
    """The calls of a dotted name somewhere in a node."""
    found: list[cst.Call] = []

    class _Visitor(cst.CSTVisitor):
        def visit_Call(self, node: cst.Call) -> None:
            if get_full_name_for_node(node.func) == function:
                found.append(node)

    node.visit(_Visitor())
    return found


def lists_with(node: cst.CSTNode, element: str) -> list[cst.List]:
    """The list displays of which an element is written like this."""
    found: list[cst.List] = []

    class _Visitor(cst.CSTVisitor):
        def visit_List(self, node: cst.List) -> None:
            if any(code(each.value) == element for each in node.elements):
                found.append(node)

    node.visit(_Visitor())
    return found


def statements(target: cst.CSTNode) -> Iterator[cst.BaseStatement]:
    """All statements in a definition, nested ones too, each once."""
    for block in _blocks(target):
        for statement in block:
            yield statement
            yield from statements(statement)


def leads_to(statement: cst.CSTNode, target: cst.CSTNode) -> bool:
    """Whether a statement is another one, or has it in its blocks."""
    return statement is target or any(each is target for each in statements(statement))


def holds(target: cst.CSTNode, wanted: str) -> bool:
    """Whether some block of a definition has these statements, however they are formatted."""
    run = [ast.dump(each) for each in ast.parse(textwrap.dedent(wanted)).body]
    tree = ast.parse(textwrap.dedent(cst.Module([]).code_for_node(target)))
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                dumps = [ast.dump(each) for each in block]
                if any(dumps[i : i + len(run)] == run for i in range(len(dumps))):
                    return True
    return False


def _named(outer: Scope, part: str) -> Iterator[Definition]:
    for block in _blocks(outer):
        yield from _named_in(block, part)


def _named_in(block: Sequence[Statement], part: str) -> Iterator[Definition]:
    for statement in block:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            if statement.name.value == part:
                yield statement
        elif isinstance(statement, cst.SimpleStatementLine):
            if any(part in _targets(small) for small in statement.body):
                yield statement
        else:
            for inner in _blocks(statement):
                yield from _named_in(inner, part)


def _blocks(node: cst.CSTNode) -> Iterator[Sequence[cst.BaseStatement]]:
    """The blocks of a statement or a module, those of its `else` and `except` too."""
    if isinstance(node, cst.Module):
        yield node.body
        return
    body = getattr(node, "body", None)
    if isinstance(body, cst.IndentedBlock):
        yield body.body
    for part in (getattr(node, name, None) for name in ("orelse", "finalbody")):
        if isinstance(part, cst.If):
            yield [part]
        elif isinstance(part, cst.CSTNode):
            yield from _blocks(part)
    for handler in getattr(node, "handlers", ()):
        yield from _blocks(handler)


def _own_parts(statement: cst.BaseStatement) -> Iterator[cst.CSTNode]:
    """A simple statement whole; of a compound one what precedes its block."""
    if isinstance(statement, cst.SimpleStatementLine):
        yield statement
    for name in ("test", "iter"):
        part = getattr(statement, name, None)
        if isinstance(part, cst.CSTNode):
            yield part
    yield from getattr(statement, "items", ())


def _targets(small: cst.BaseSmallStatement) -> list[str]:
    if isinstance(small, cst.Assign):
        return [code(each.target) for each in small.targets]
    if isinstance(small, cst.AnnAssign | cst.AugAssign):
        return [code(small.target)]
    return []
