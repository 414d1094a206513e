# SPDX-License-Identifier: Apache-2.0
"""`python -m kvstrata.seams` for installed slices that are fine, drifted, broken or absent."""

import json
from collections.abc import Mapping

import pytest

from .conftest import Workshop

SLICES = """
from reed import *

FINE = seams(hook("flow"), hook("Pond.fill"))
DRIFTED = seams(hook("Pond.of"), hook("logged_flow", fingerprint="0" * 16), slice="kvstrata-rush")
RIVAL = seams(hook("Pond.pipe"), slice="kvstrata-rival")
NEWER = seams(hook("flow", versions=("2.0",)), slice="kvstrata-newer")
OTHER = seams(hook("flow"), upstream="lagoon", slice="kvstrata-other")
NO_SEAMS = 7
"""


def install(workshop: Workshop, **points: str) -> None:
    workshop.module("slices", SLICES)
    objects = {name: f"slices:{value}" for name, value in points.items()}
    workshop.distribution("kvstrata-reed", "0.1", {"kvstrata.seams": objects})


def rows(output: str) -> dict[str, Mapping[str, str]]:
    return {row["target"]: row for row in json.loads(output)["hooks"]}


def test_a_fine_slice_is_shown_as_supported_and_applied(workshop: Workshop) -> None:
    install(workshop, reed="FINE")
    result = workshop.python("-m", "kvstrata.seams")
    assert (result.returncode, result.stderr) == (0, "")
    assert "kvstrata-reed  (pond 1.2)" in result.stdout
    assert "switched on by: REED=1 in the environment." in result.stdout
    assert "around   pond.Pond.fill\n    status: supported, applied\n" in result.stdout
    assert result.stdout.count("supported, applied") == 2


def test_a_comparison_alone_imports_no_upstream(workshop: Workshop) -> None:
    install(workshop, reed="FINE")
    workshop.module("sglang/__init__", "raise SystemExit('imported sglang')")
    result = workshop.python("-m", "kvstrata.seams", "list", "--no-trial", "--json")
    assert result.returncode == 0, result.stderr
    found = rows(result.stdout)
    assert [row["status"] for row in found.values()] == ["supported", "supported"]
    assert [row["trial"] for row in found.values()] == [None, None]


def test_a_drifted_slice_is_not_applied_and_leaves_others_alone(workshop: Workshop) -> None:
    install(workshop, reed="FINE", rush="DRIFTED")
    result = workshop.python("-m", "kvstrata.seams", "--json")
    assert result.returncode == 1
    found = rows(result.stdout)
    assert found["pond.flow"]["trial"] == "applied"
    assert found["pond.logged_flow"]["status"] == "drifted"
    assert "expected fingerprint 0000000000000000" in found["pond.logged_flow"]["detail"]
    assert found["pond.Pond.of"]["status"] == "supported"
    assert found["pond.Pond.of"]["trial"] == "not applied: pond.logged_flow is drifted"


@pytest.mark.parametrize(
    ("name", "status", "expected"),
    [
        ("NEWER", "unknown version", "pond 2.0; found pond 1.2"),
        ("OTHER", "upstream not installed", "lagoon 1.2; found no lagoon"),
    ],
)
def test_what_cannot_be_compared_is_named(
    workshop: Workshop, name: str, status: str, expected: str
) -> None:
    install(workshop, reed=name)
    result = workshop.python("-m", "kvstrata.seams")
    assert result.returncode == 1
    assert f"status: {status}, not applied\n    detail: expected {expected}" in result.stdout


def test_a_plugin_that_took_a_target_first_is_named(workshop: Workshop) -> None:
    install(workshop, reed="FINE", rival="RIVAL")
    workshop.module(
        "heron",
        """
        from reed import mark
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
        def plugin():
            HookRegistry.register("pond.Pond.pipe", mark("theirs"), HookType.AROUND)
        """,
    )
    workshop.distribution("heron", "1", {"sglang.srt.plugins": {"heron": "heron:plugin"}})
    result = workshop.python("-m", "kvstrata.seams", "--json")
    assert result.returncode == 1
    found = rows(result.stdout)
    assert "taken: expected the original; found hooks of heron" in found["pond.Pond.pipe"]["trial"]
    assert "stopped by kvstrata-rival, pond.Pond.pipe (taken)" in found["pond.flow"]["trial"]


def test_a_broken_sglang_is_a_finding(workshop: Workshop) -> None:
    install(workshop, reed="FINE")
    workshop.module("sglang/__init__", "raise RuntimeError('no accelerator library')")
    result = workshop.python("-m", "kvstrata.seams")
    assert result.returncode == 1
    assert "no accelerator library" in result.stdout
    assert "Traceback" not in result.stderr


def test_a_slice_that_cannot_be_loaded_is_a_failure(workshop: Workshop) -> None:
    install(workshop, reed="FINE", gone="GONE", wrong="NO_SEAMS")
    result = workshop.python("-m", "kvstrata.seams", "--no-trial")
    assert result.returncode == 1
    assert "gone (slices:GONE) cannot be loaded: AttributeError" in result.stdout
    assert "wrong (slices:NO_SEAMS) is not a Seams but 7" in result.stdout


@pytest.mark.parametrize("command", [[], ["list"], ["record"]])
def test_no_installed_slice_is_fine(workshop: Workshop, command: list[str]) -> None:
    result = workshop.python("-m", "kvstrata.seams", *command)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("No kvstrata slice with hooks is installed")


def test_record_prints_pins_that_then_fit(workshop: Workshop) -> None:
    install(workshop, rush="DRIFTED", newer="NEWER")
    result = workshop.python("-m", "kvstrata.seams", "record")
    assert result.returncode == 0, result.stderr
    targets = ["pond.flow", "pond.Pond.of", "pond.logged_flow"]
    lines = result.stdout.splitlines()
    assert [line.split('"')[3] for line in lines] == targets
    pins = "{" + lines[0] + "}"
    shown = workshop.shown(f"""
        apply(seams(Hook(Kind.AROUND, mark("ours"), "Why.", {pins})))
        import pond
        show(flow=pond.flow(1))
    """)
    assert shown["flow"] == ["ours", "flow", 1]


def test_record_takes_targets_and_names_the_missing_one(workshop: Workshop) -> None:
    arguments = ["record", "--upstream", "pond", "pond.Pond", "pond.Lake"]
    result = workshop.python("-m", "kvstrata.seams", *arguments)
    assert result.returncode == 1
    assert result.stdout.startswith('"1.2": Pin("pond.Pond", "')
    assert result.stderr == "pond.Lake: pond does not define Lake (pond 1.2)\n"
