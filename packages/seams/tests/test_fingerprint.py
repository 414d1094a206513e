# SPDX-License-Identifier: Apache-2.0
"""A fingerprint changes with the code alone, and is the same on every supported Python."""

import io
import json
import keyword
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from kvstrata.seams.fingerprint import definitions, fingerprint

SAMPLE = Path(__file__).parent / "data" / "sample.txt"
RECORDED = {
    "kernel": "0d62486ee04ceb1d",
    "texts": "a643fcea3ce18f9c",
    "Pool": "14ff8324641f2e6b",
    "Pool.__init__": "000a30974c251ff2",
    "Pool.free": "668a8b7aa28e12cb",
    "Pool.of": "8d5b7bc383b96803",
    "Pool.pages": "46aee83e046dd676",
    "Pool.drain": "d72d74302a98405e",
    "Pool.Page": "bc21f183d4d71e3b",
    "Pool.Page.free": "c604b577a071246a",
}

# Loads the module by its path alone: it must not need the package, nor anything installed.
BY_PATH = """
import importlib.util, json, pathlib, sys
spec = importlib.util.spec_from_file_location("fingerprint", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
source = pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")
print(json.dumps({name: module.fingerprint(source, name) for name in sys.argv[3:]}))
"""


@pytest.fixture(scope="module")
def sample() -> str:
    return SAMPLE.read_text(encoding="utf-8")


def fingerprints(source: str) -> dict[str, str]:
    return {name: fingerprint(source, name) for name in RECORDED}


def test_the_sample_has_the_recorded_fingerprints(sample: str) -> None:
    assert fingerprints(sample) == RECORDED
    assert len(set(RECORDED.values())) == len(RECORDED)


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_every_supported_python_computes_the_same_fingerprints(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no working python{version} on PATH")
    module = sys.modules[fingerprint.__module__].__file__
    output = subprocess.run(
        [python, "-W", "error", "-c", BY_PATH, str(module), str(SAMPLE), *RECORDED],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert json.loads(output) == RECORDED


def interpreter(version: str) -> str | None:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        return sys.executable
    path = shutil.which(f"python{version}")
    # A version manager's shim may be there for a version that is not.
    if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
        return path
    return None


def test_a_comment_or_blank_line_anywhere_changes_nothing(sample: str) -> None:
    lines = sample.splitlines()
    # A line may be followed by a comment unless the next one continues a string.
    ends = {
        token.end[0]
        for token in tokenize.generate_tokens(io.StringIO(sample).readline)
        if token.type == tokenize.NEWLINE
    }
    assert len(ends) > 40
    for end in ends:
        changed = [*lines[:end], "", "        # a remark", *lines[end:]]
        assert fingerprints("\n".join(changed)) == RECORDED, f"after line {end}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(a, b): return a+b", "def f(\n    a,\n    b,\n):\n    return (a + b)"),
        ("def f(): return 'a'", 'def f():\n    return "a"'),
        ("def f(): return u'a' 'b'", "def f(): return 'ab'"),
        ("def f(): return 1000", "def f(): return 1_000"),
        ("def f(): return f'{x}' 'a' 'b'", "def f(): return f'{x}ab'"),
        ("def f():\n  'Text.'\n  return 1", "def f():\n  return 1"),
        ("def f():\n  'Text.'\n  return 1", "def f():\n  '''Other\n  text.'''\n  return 1"),
        ("def f():\n  class C:\n    'Text.'\n    x = 1", "def f():\n  class C:\n    x = 1"),
        ("x = 1\ndef f(): pass", "def f(): pass\ndef g(): pass"),
    ],
    ids=[
        "line breaks and parentheses",
        "quotes",
        "string prefix and concatenation",
        "digit grouping",
        "f-string pieces",
        "docstring removed",
        "docstring changed",
        "inner docstring",
        "neighbours",
    ],
)
def test_layout_does_not_count(one: str, other: str) -> None:
    assert fingerprint(one, "f") == fingerprint(other, "f")


@pytest.mark.parametrize(
    "changed",
    [
        "def f(a, b=1): return a.x + b + 2",
        "def f(a, *, b=1): return a.x + b",
        "def f(a, b=2): return a.x + b",
        "def f(a, b=1): return a.x - b",
        "def f(a, b=1): return a.y + b",
        "def f(a, b=1): return b + a.x",
        "def f(a, b=True): return a.x + b",
        "def f(a, b=1.0): return a.x + b",
        "def f(a, b='1'): return a.x + b",
        "def f(a, b=b'1'): return a.x + b",
        "def f(a, b=None): return a.x + b",
        "def f(a: int, b=1): return a.x + b",
        "def f(a, b=1) -> int: return a.x + b",
        "async def f(a, b=1): return a.x + b",
        "@cache\ndef f(a, b=1): return a.x + b",
        "def f(a, b=1): 'Text.'",
        "def f(a, b=1):\n  0\n  return a.x + b",
        "def f(a, b=1): return a.x + b\ndef f(a): pass",
        "if x:\n  def f(a, b=1): return a.x + b\nelse:\n  def f(a): pass",
    ],
)
def test_code_counts(changed: str) -> None:
    assert fingerprint(changed, "f") != fingerprint("def f(a, b=1): return a.x + b", "f")


def test_renaming_any_identifier_changes_a_fingerprint(sample: str) -> None:
    lines = sample.splitlines(keepends=True)
    texts = definitions(sample, "texts")[0]
    renamed = 0
    for token in tokenize.generate_tokens(io.StringIO(sample).readline):
        row, column = token.start
        inside = texts.lineno < row <= (texts.end_lineno or 0)
        if token.type != tokenize.NAME or keyword.iskeyword(token.string) or not inside:
            continue
        line = lines[row - 1]
        line = line[:column] + "renamed_" + line[column:]
        changed = "".join([*lines[: row - 1], line, *lines[row:]])
        assert fingerprint(changed, "texts") != RECORDED["texts"], f"{token.string} in line {row}"
        renamed += 1
    assert renamed > 30


def test_a_definition_is_found_in_any_block_but_not_inside_a_function() -> None:
    source = (
        "with a:\n  try: pass\n  except E:\n    class C:\n      def f(self): pass\n"
        "match a:\n  case 1:\n    def g():\n      def inner(): pass\n"
    )
    assert len(definitions(source, "C.f")) == 1
    assert len(definitions(source, "g")) == 1
    for missing in ("inner", "g.inner", "C.g", "f", "C.f.x"):
        with pytest.raises(LookupError, match=missing):
            definitions(source, missing)
