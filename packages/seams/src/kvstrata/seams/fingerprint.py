# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of definitions in Python source: equal where the code is, whatever its layout.

Comments, formatting and docstrings do not count: none of them can change what a hook meets.
Decorators, annotations, names and literals do. The value is the same on every supported Python.
"""

import ast
import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment"})


def fingerprint(source: str, qualname: str) -> str:
    """16 hex digits for all that `source` defines as `qualname` (such as "Pool.alloc").

    A name that is defined several times (in both arms of an `if`, as a property and its setter)
    has one fingerprint over all of its definitions. LookupError where there is none.
    """
    text = "\n".join(_dump(node) for node in definitions(source, qualname))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def definitions(source: str, qualname: str) -> list[Definition]:
    """The definitions of `qualname` in source order; LookupError where there is none."""
    found: list[Definition] = []
    scopes: Sequence[ast.AST] = [_parse(source)]
    for name in qualname.split("."):
        found = [node for scope in scopes for node in _defined_in(scope) if node.name == name]
        scopes = [node for node in found if isinstance(node, ast.ClassDef)]
    if not found:
        raise LookupError(f"no definition of {qualname}")
    return found


# Hooks come grouped by module, and the tree of a large module takes megabytes: keep one.
@lru_cache(maxsize=1)
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


def _defined_in(scope: ast.AST) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, _DEFINITIONS):
            yield child
        elif isinstance(child, _BLOCKS):
            yield from _defined_in(child)


# ast.dump writes other text in each Python release; this writes only what is present.
def _dump(value: object) -> str:
    if isinstance(value, ast.Constant):
        return f"Constant({type(value.value).__name__}={value.value!a})"
    if isinstance(value, ast.AST):
        fields = ((name, child) for name, child in _fields(value) if child not in (None, []))
        return f"{type(value).__name__}({','.join(f'{n}={_dump(child)}' for n, child in fields)})"
    if isinstance(value, list):
        return f"[{','.join(_dump(item) for item in value)}]"
    return ascii(value)


def _fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    for name, value in ast.iter_fields(node):
        if name in _IGNORED_FIELDS:
            continue
        if name == "body" and isinstance(node, _DEFINITIONS):
            yield name, node.body[1:] if ast.get_docstring(node, clean=False) is not None else value
        elif name == "values" and isinstance(node, ast.JoinedStr):
            yield name, _literal_runs_joined(node.values)
        else:
            yield name, value


# How an f-string's literal text is cut into constants differs between Python releases.
def _literal_runs_joined(values: Sequence[ast.expr]) -> list[ast.expr]:
    joined: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            if not value.value:
                continue
            last = joined[-1] if joined else None
            if isinstance(last, ast.Constant) and isinstance(last.value, str):
                joined[-1] = ast.Constant(last.value + value.value)
                continue
        joined.append(value)
    return joined
