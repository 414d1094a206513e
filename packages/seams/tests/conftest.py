# SPDX-License-Identifier: Apache-2.0
"""A synthetic upstream, hooked in processes of their own through the installed SGLang's plugins."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

import kvstrata.seams
from kvstrata.seams.fingerprint import fingerprint

UPSTREAM = """\
import functools

def logged(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)
    return inner

def mangled(function):
    return lambda *args: function(*args)

def flow(litres):
    return ["flow", litres]

@logged
def logged_flow(litres):
    return ["logged_flow", litres]

@mangled
def mangled_flow(litres):
    return ["mangled_flow", litres]

class Pond:
    def fill(self, litres):
        return ["fill", litres]

    @classmethod
    def of(cls, litres):
        return [cls.__name__, litres]

    @staticmethod
    def pipe(litres):
        return ["pipe", litres]

    @property
    def depth(self):
        return 1

class DeepPond(Pond):
    pass
"""

# What the scripts of these tests import: hooks that leave a mark in the result.
SLICE = """\
import json, sys
from kvstrata.seams import Hook, Kind, Pin, Seams, SeamError, apply, verify
from fingerprints import FINGERPRINTS

def mark(text):
    def around(original, *args, **kwargs):
        return [text, *original(*args, **kwargs)]
    around.__name__ = text
    return around

def pin(name, fingerprint=None, target=None):
    target = target or "pond." + name
    return Pin(target, fingerprint or FINGERPRINTS.get(name, "0" * 16))

def hook(name, function=None, kind=Kind.AROUND, versions=("1.2",), **pins):
    pinned = {version: pin(name, **pins) for version in versions}
    return Hook(kind, function or mark("ours"), "Marks the result.", pinned)

def seams(*hooks, slice="kvstrata-reed", upstream="pond"):
    return Seams(slice, upstream, "REED=1 in the environment.", hooks)

def plugin(name):
    import contextlib
    from sglang.srt.plugins import hook_registry
    @contextlib.contextmanager
    def source():
        token = hook_registry._current_plugin_source.set(hook_registry.HookSource(name, None))
        yield hook_registry.HookRegistry, hook_registry.HookType
        hook_registry._current_plugin_source.reset(token)
    return source()

def show(**values):
    print(json.dumps(values))

def refused(call, *args):
    try:
        call(*args)
    except SeamError as error:
        return dict(
            vars(error), reason=error.reason.name, text=str(error), code=error.code
        )
    return None
"""

# SGLang's own package root imports torch; its plugin framework, used here as installed, does not.
SGLANG_ROOT = "__path__ = [{path!r}]\n"


@dataclass(frozen=True)
class Workshop:
    """A folder of modules and distributions, and Python processes that see them."""

    folder: Path
    environment: Mapping[str, str] = field(repr=False)

    def module(self, name: str, source: str) -> None:
        path = self.folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source), encoding="utf-8")

    def distribution(
        self, name: str, version: str, entry_points: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        """Installs metadata; `entry_points` maps a group to names and their objects."""
        folder = self.folder / f"{name.replace('-', '_')}.dist-info"
        folder.mkdir(exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / "METADATA").write_text(metadata, encoding="utf-8")
        lines: list[str] = []
        for group, points in (entry_points or {}).items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
        (folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return self.python("-c", "from reed import *\n" + textwrap.dedent(script))

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
            cwd=self.folder,
            env=self.environment,
        )

    def shown(self, script: str) -> dict[str, object]:
        """What the script's last show(...) printed."""
        result = self.run(script)
        assert result.returncode == 0, result.stderr
        shown = json.loads(result.stdout.splitlines()[-1])
        assert isinstance(shown, dict)
        return shown


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    names = ("flow", "logged_flow", "mangled_flow", "Pond", "DeepPond")
    methods = ("Pond.fill", "Pond.of", "Pond.pipe", "Pond.depth")
    fingerprints = {name: fingerprint(UPSTREAM, name) for name in (*names, *methods)}
    sglang = find_spec("sglang")
    assert sglang is not None, "these tests need the distribution sglang"
    assert sglang.submodule_search_locations is not None
    workshop = Workshop(tmp_path, _environment(tmp_path))
    workshop.module("pond", UPSTREAM)
    workshop.module("reed", SLICE)
    workshop.module("fingerprints", f"FINGERPRINTS = {fingerprints!r}\n")
    root = SGLANG_ROOT.format(path=str(sglang.submodule_search_locations[0]))
    workshop.module("sglang/__init__", root)
    workshop.distribution("pond", "1.2")
    return workshop


def _environment(folder: Path) -> dict[str, str]:
    seams = Path(next(iter(kvstrata.seams.__path__))).parents[1]
    environment = {key: value for key, value in os.environ.items() if "SGLANG" not in key}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(seams)])
    # Other plugins of this environment stay out, unless a test names its own.
    environment["SGLANG_PLUGINS"] = "reed,heron,wind"
    return environment
