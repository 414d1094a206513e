# SPDX-License-Identifier: Apache-2.0
"""The directive `settings-table`: a msgspec Struct's fields with types, defaults and descriptions.

The table is made from the type itself when the site is built, so it says what the code accepts.
"""

from __future__ import annotations

import importlib

from docutils import nodes
from docutils.parsers.rst import Directive
from msgspec import NODEFAULT, inspect
from sphinx.application import Sphinx

_COLUMNS = (("Setting", 3), ("Type", 2), ("Default", 2), ("Meaning", 5))
_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


class SettingsTable(Directive):
    """Takes the dotted name of a Struct; a field without a description is an error."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        struct = inspect.type_info(getattr(importlib.import_module(module), name))
        if not isinstance(struct, inspect.StructType):
            raise self.error(f"{self.arguments[0]} is not a msgspec Struct")
        return [_table([self._row(field) for field in struct.fields])]

    def _row(self, field: inspect.Field) -> tuple[nodes.Node, ...]:
        schema = _schema(field.type)
        if "description" not in schema:
            raise self.error(f"{self.arguments[0]}.{field.name} has no description")
        return (
            nodes.literal(text=field.encode_name),
            nodes.Text(_type(field.type, field.name)),
            _default(field.default, field.name),
            nodes.Text(schema["description"]),
        )


def _schema(kind: inspect.Type) -> dict[str, str]:
    """What is said about a field, over all layers of its annotation."""
    if not isinstance(kind, inspect.Metadata):
        return {}
    return {**_schema(kind.type), **(kind.extra_json_schema or {})}


def _type(kind: inspect.Type, name: str) -> str:
    if isinstance(kind, inspect.Metadata):
        return _type(kind.type, name)
    if isinstance(kind, inspect.BoolType):
        return "true or false"
    if isinstance(kind, inspect.StrType):
        return "text"
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(str(value) for value in kind.values)
    if isinstance(kind, inspect.VarTupleType):
        return f"list of {_type(kind.item_type, name)}"
    if isinstance(kind, inspect.IntType) and name.endswith("_bytes"):
        return "size"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        number = "whole number" if isinstance(kind, inspect.IntType) else "number"
        return ", ".join([number, *_bounds(kind)])
    raise TypeError(f"no words for the type of {name}: {kind!r}")


def _bounds(kind: inspect.IntType | inspect.FloatType) -> list[str]:
    bounds = (("from", kind.ge), ("above", kind.gt), ("up to", kind.le), ("below", kind.lt))
    return [f"{word} {bound:g}" for word, bound in bounds if bound is not None]


def _default(value: object, name: str) -> nodes.Node:
    if value is NODEFAULT:
        return nodes.Text("required")
    if value in ("", ()):
        return nodes.Text("empty")
    if isinstance(value, bool):
        return nodes.literal(text=str(value).lower())
    if isinstance(value, int) and name.endswith("_bytes"):
        return nodes.literal(text=_size(value))
    return nodes.literal(text=f"{value:g}" if isinstance(value, float) else str(value))


def _size(value: int) -> str:
    unit, factor = next(((u, f) for u, f in _UNITS if value and value % f == 0), ("B", 1))
    return f"{value // factor}{unit}"


def _table(rows: list[tuple[nodes.Node, ...]]) -> nodes.table:
    group = nodes.tgroup(cols=len(_COLUMNS))
    group += [nodes.colspec(colwidth=width) for _, width in _COLUMNS]
    head, body = nodes.thead(), nodes.tbody()
    head += _row([nodes.Text(title) for title, _ in _COLUMNS])
    body += [_row(row) for row in rows]
    group += [head, body]
    table = nodes.table()
    table += group
    return table


def _row(cells: list[nodes.Node] | tuple[nodes.Node, ...]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        row += nodes.entry("", nodes.paragraph("", "", cell))
    return row


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("settings-table", SettingsTable)
    return {"parallel_read_safe": True}
