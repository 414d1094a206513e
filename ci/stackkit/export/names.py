# SPDX-License-Identifier: Apache-2.0
"""New names for our modules: imports, and words in texts and comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst
from libcst.helpers import get_full_name_for_node

# Those of our own checkers: the upstream has not asked for them.
_OUR_CHECKS = re.compile(r"#\s*(?:type: ignore|isort: skip)")
_OUR_LINT = re.compile(r"#\s*noqa: (?P<codes>[A-Z0-9, ]+?)\s*(?:-\s+(?P<why>.*))?$")


@dataclass(frozen=True)
class Names:
    """What things are called upstream.

    Args:
        modules: dotted module names, each with what it holds; the longest prefix wins.
        words: words of texts and comments, in the order in which they are looked for; the dotted
            modules come first.
        kept_lint: the linter's codes whose `noqa` comments the upstream needs too.
    """

    modules: Mapping[str, str]
    words: Mapping[str, str] = field(default_factory=dict)
    kept_lint: tuple[str, ...] = ("F401", "F821", "E402")

    def module(self, name: str) -> str:
        """The upstream's name of a module, or the same name if it is none of ours."""
        for ours in sorted(self.modules, key=len, reverse=True):
            if name == ours or name.startswith(f"{ours}."):
                return self.modules[ours] + name.removeprefix(ours)
        return name

    def text(self, text: str) -> str:
        for ours, theirs in (*self._dotted(), *self.words.items()):
            literal = theirs.replace("\\", r"\\")
            text = re.sub(rf"(?<![\w.]){re.escape(ours)}(?!\w)", literal, text)
        return text

    def _dotted(self) -> list[tuple[str, str]]:
        return sorted(self.modules.items(), key=lambda each: len(each[0]), reverse=True)

    def python(self, source: str, package: str) -> str:
        """A module of the package `package` under its new names; relative imports are absolute."""
        return cst.parse_module(source).visit(_Renaming(self, package)).code

    def comment(self, text: str) -> str:
        """A comment without what it says to our own checkers; empty if nothing is left."""
        if _OUR_CHECKS.match(text):
            return ""
        lint = _OUR_LINT.match(text)
        if lint:
            kept = [code for code in re.split(r"[, ]+", lint["codes"]) if code in self.kept_lint]
            why = f"# {lint['why'].strip()}" if lint["why"] else ""
            return f"# noqa: {', '.join(kept)}" if kept else self.text(why)
        return self.text(text)


class _Renaming(cst.CSTTransformer):
    def __init__(self, names: Names, package: str) -> None:
        super().__init__()
        self._names = names
        self._package = package.split(".")

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.FlattenSentinel[cst.BaseSmallStatement]:
        level = len(original_node.relative)
        named = get_full_name_for_node(original_node.module) if original_node.module else ""
        parts = self._package[: len(self._package) - level + 1] if level else []
        module = ".".join([*parts, *filter(None, [named])])
        if isinstance(updated_node.names, cst.ImportStar):
            return self._importing(updated_node, module)
        # `from . import x` and `from package import x` may name modules that moved elsewhere.
        homes: dict[str, list[cst.ImportAlias]] = {}
        for alias in updated_node.names:
            whole = f"{module}.{get_full_name_for_node(alias.name)}"
            moved = self._names.module(whole)
            home, _, name = moved.rpartition(".")
            if whole not in self._names.modules:
                home, name = self._names.module(module), str(get_full_name_for_node(alias.name))
            homes.setdefault(home, []).append(alias.with_changes(name=cst.Name(name)))
        if len(homes) > 1:
            homes = {home: _without_last_comma(aliases) for home, aliases in homes.items()}
        made = [
            self._importing(updated_node.with_changes(names=aliases), home)
            for home, aliases in homes.items()
        ]
        return made[0] if len(made) == 1 else cst.FlattenSentinel(made)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.BaseStatement]:
        """An import that became several has a line for each."""
        if len(updated_node.body) == len(original_node.body):
            return updated_node
        lines = [
            updated_node.with_changes(
                body=[small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)],
                leading_lines=() if i else updated_node.leading_lines,
            )
            for i, small in enumerate(updated_node.body)
        ]
        return cst.FlattenSentinel(lines)

    def _importing(self, statement: cst.ImportFrom, module: str) -> cst.ImportFrom:
        dotted = cst.parse_expression(self._names.module(module))
        if not isinstance(dotted, cst.Name | cst.Attribute):
            raise TypeError(f"{module!r} is no dotted name")
        after = statement.whitespace_after_from
        if not after.empty:
            return statement.with_changes(module=dotted, relative=())
        space = cst.SimpleWhitespace(" ")
        return statement.with_changes(module=dotted, relative=(), whitespace_after_from=space)

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        aliases = []
        for alias in updated_node.names:
            name = str(get_full_name_for_node(alias.name))
            moved = self._names.module(name)
            aliases.append(alias.with_changes(name=cst.parse_expression(moved)))
        return updated_node.with_changes(names=aliases)

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        return updated_node.with_changes(value=self._names.text(updated_node.value))

    def leave_FormattedStringText(
        self, original_node: cst.FormattedStringText, updated_node: cst.FormattedStringText
    ) -> cst.FormattedStringText:
        return updated_node.with_changes(value=self._names.text(updated_node.value))

    def leave_TrailingWhitespace(
        self, original_node: cst.TrailingWhitespace, updated_node: cst.TrailingWhitespace
    ) -> cst.TrailingWhitespace:
        if updated_node.comment is None:
            return updated_node
        text = self._names.comment(updated_node.comment.value)
        if text:
            return updated_node.with_changes(comment=cst.Comment(text))
        return updated_node.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))

    def leave_EmptyLine(
        self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine
    ) -> cst.EmptyLine:
        if updated_node.comment is None:
            return updated_node
        text = self._names.text(updated_node.comment.value)
        return updated_node.with_changes(comment=cst.Comment(text))


def _without_last_comma(aliases: list[cst.ImportAlias]) -> list[cst.ImportAlias]:
    return [*aliases[:-1], aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
