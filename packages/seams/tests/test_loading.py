# SPDX-License-Identifier: Apache-2.0
"""SGLang's load_plugins() in a server process, with slices that apply their hooks from a plugin."""

from .conftest import Workshop

SERVER = """
from sglang.srt.plugins import load_plugins
load_plugins()
import pond
print("serving", pond.flow(1))
"""
PLUGIN = """
from reed import *

ALL = seams(hook("flow"{pins}))

def plugin():
    apply(ALL)
"""
# Loaded after "reed": entry points come in the order of their distribution's file.
WIND = """
from reed import mark
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

def plugin():
    HookRegistry.register("pond.flow", {function}, HookType.{kind})
"""


def install(workshop: Workshop, *, pins: str = "", wind: str | None = None) -> None:
    workshop.module("reed_plugin", PLUGIN.format(pins=pins))
    points = {"reed": "reed_plugin:plugin"}
    if wind is not None:
        workshop.module("wind", wind)
        points["wind"] = "wind:plugin"
    workshop.distribution("kvstrata-reed", "0.1", {"sglang.srt.plugins": points})


def test_hooks_applied_from_a_plugin_work_when_plugins_have_been_loaded(workshop: Workshop) -> None:
    install(workshop)
    result = workshop.python("-c", SERVER)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "serving ['ours', 'flow', 1]\n"


def test_a_changed_fingerprint_ends_the_server_with_one_line(workshop: Workshop) -> None:
    install(workshop, pins=', fingerprint="0123456789abcdef"')
    result = workshop.python("-c", SERVER)
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvstrata-reed cannot hook pond.flow (drifted): ")
    assert "expected fingerprint 0123456789abcdef in pond 1.2; found fingerprint " in line


def test_a_later_plugin_on_the_same_target_composes(workshop: Workshop) -> None:
    install(workshop, wind=WIND.format(function="mark('wind')", kind="AROUND"))
    result = workshop.python("-c", SERVER)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "serving ['wind', 'ours', 'flow', 1]\n"


def test_a_later_plugin_that_replaces_the_target_ends_the_server(workshop: Workshop) -> None:
    install(workshop, wind=WIND.format(function="lambda litres: []", kind="REPLACE"))
    result = workshop.python("-c", SERVER)
    assert (result.returncode, result.stdout) == (1, "")
    assert "kvstrata-reed cannot hook pond.flow (taken): " in result.stderr
    assert "of wind by wind" in result.stderr


def test_a_later_plugin_that_patches_the_original_ends_the_server(workshop: Workshop) -> None:
    install(workshop, wind="import pond\n\ndef plugin():\n    pond.flow = lambda litres: []\n")
    result = workshop.python("-c", SERVER)
    assert (result.returncode, result.stdout) == (1, "")
    assert "kvstrata-reed cannot hook pond.flow (replaced): " in result.stderr
    assert "of wind" in result.stderr


def test_two_slices_applied_while_plugins_load_are_both_verified(workshop: Workshop) -> None:
    wind = """
        from reed import *
        def plugin():
            apply(seams(hook("Pond.fill"), slice="kvstrata-wind"))
            import pond
            pond.Pond.fill = lambda *args: None
    """
    install(workshop, wind=wind)
    result = workshop.python("-c", SERVER)
    assert (result.returncode, result.stdout) == (1, "")
    assert "kvstrata-wind cannot hook pond.Pond.fill (replaced): " in result.stderr


def test_a_spawned_process_exits_with_code_1(workshop: Workshop) -> None:
    install(workshop, pins=', fingerprint="0123456789abcdef"')
    workshop.module(
        "child",
        "def main():\n    from sglang.srt.plugins import load_plugins\n"
        "    try:\n        load_plugins()\n    except Exception:\n        pass\n",
    )
    result = workshop.python(
        "-c",
        "import multiprocessing, child\n"
        "process = multiprocessing.get_context('spawn').Process(target=child.main)\n"
        "process.start(); process.join(); print(process.exitcode)",
    )
    assert result.stdout == "1\n"
    assert len(result.stderr.splitlines()) == 1
