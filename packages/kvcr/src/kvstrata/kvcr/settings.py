# SPDX-License-Identifier: Apache-2.0
"""The settings in words, made from the configuration type itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import NODEFAULT, inspect

_UNITS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


@dataclass(frozen=True)
class Setting:
    """One setting; `default` is as it is written, and empty where that is nothing."""

    name: str
    type: str
    default: str
    meaning: str


def settings_of(struct: type) -> Iterator[Setting]:
    """The fields of a msgspec Struct; raises ValueError for one without a description."""
    described = inspect.type_info(struct)
    if not isinstance(described, inspect.StructType):
        raise ValueError(f"{struct.__name__} is not a msgspec Struct")
    for field in described.fields:
        schema = _schema(field.type)
        if "description" not in schema:
            raise ValueError(f"{struct.__name__}.{field.name} has no description")
        has_maker = field.default_factory is not NODEFAULT
        yield Setting(
            field.encode_name,
            _type(field.type, field.name),
            _default(field.default_factory() if has_maker else field.default, field.name),
            schema["description"],
        )


def markdown_table(struct: type) -> str:
    """The settings as a table, which ends with a line break."""
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for setting in settings_of(struct):
        default = f"`{setting.default}`" if setting.default else "empty"
        lines.append(f"| `{setting.name}` | {setting.type} | {default} | {setting.meaning} |")
    return "\n".join(lines) + "\n"


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
    if isinstance(kind, inspect.DictType):
        return "object"
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


def _default(value: object, name: str) -> str:
    if value is NODEFAULT:
        return "required"
    if value in ("", (), {}):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and name.endswith("_bytes"):
        return _size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _size(value: int) -> str:
    unit, factor = next(((u, f) for u, f in _UNITS if value and value % f == 0), ("B", 1))
    return f"{value // factor}{unit}"
