# SPDX-License-Identifier: Apache-2.0
"""What an installation changes in SGLang: nothing until it is chosen, and nothing once it is gone.

Each case is a process of its own, since hooks stay in a process for good.
"""

import json
import os
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

from kvstrata_host.model import TINY, build_model
from kvstrata_host.server import Server, StartError
from kvstrata_host.spec import ServerSpec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

DISTRIBUTION = "kvstrata-kvcr"

# Prints what a process sees of SGLang: where each hooked function is defined, and the choices.
LOOK = """
import json, pkgutil, sys
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.server_args import ServerArgs
import argparse
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
choices = next(a.choices for a in parser._actions if a.dest == "hicache_storage_backend")
functions = {}
for name in TARGETS:
    function = pkgutil.resolve_name(name)
    functions[name] = [
        function.__code__.co_filename.split("site-packages")[-1],
        function.__code__.co_firstlineno,
        hasattr(function, "__wrapped__"),
    ]
print(json.dumps({
    "functions": functions,
    "offered": ["kvcr" in choices, "kvcr" in StorageBackendFactory._registry],
    "loaded": sorted(m for m in sys.modules if m.startswith("kvstrata.")),
}))
"""


def targets() -> list[str]:
    """What the hooks for the installed SGLang are on."""
    from kvstrata.kvcr.plugin import SEAMS

    return [hook.pins[metadata.version("sglang")].target for hook in SEAMS.hooks]


def test_every_hook_has_a_pin_for_each_supported_sglang() -> None:
    from kvstrata.kvcr.plugin import SEAMS

    assert {tuple(hook.pins) for hook in SEAMS.hooks} == {("0.5.20", "0.5.21")}


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        env={
            **os.environ,
            "SGLANG_PLATFORM": "kvstrata_host",
            "TRITON_INTERPRET": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def look(before: str, **environment: str) -> dict[str, object]:
    result = run(f"{before}\nTARGETS = {targets()!r}\n{LOOK}", **environment)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(seen, dict)
    return seen


LOAD = "from sglang.srt.plugins import load_plugins; load_plugins()"


@pytest.fixture(scope="module")
def untouched() -> dict[str, object]:
    """SGLang without this slice, whose plugins are named by nobody."""
    return look(LOAD, SGLANG_PLUGINS="kvstrata_host")


def test_without_the_plugin_sglang_has_no_trace_of_the_slice(untouched: dict[str, object]) -> None:
    assert untouched["offered"] == [False, False]
    assert untouched["loaded"] == []
    functions = untouched["functions"]
    assert isinstance(functions, dict)
    assert all(path.startswith("/sglang/") for path, _, _ in functions.values())
    assert not any(wrapped for _, _, wrapped in functions.values())


def test_an_installed_slice_offers_a_choice_and_hooks_nothing_until_it_is_chosen(
    untouched: dict[str, object],
) -> None:
    result = run(
        f"""
{LOAD}
TARGETS = {targets()!r}
{LOOK}
StorageBackendFactory._registry["kvcr"]["loader"]()
{LOOK}
"""
    )
    assert result.returncode == 0, result.stderr
    before, after = map(json.loads, result.stdout.splitlines()[-2:])
    assert before["offered"] == [True, True]
    assert before["functions"] == untouched["functions"]
    assert all(wrapped for _, _, wrapped in after["functions"].values())


def test_uninstalled_leaves_no_trace(untouched: dict[str, object], tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    copied = run(
        f"""
        import shutil, sys, sysconfig, venv
        from importlib import metadata
        from pathlib import Path
        venv.create({str(environment)!r}, symlinks=True)
        site = next(Path({str(environment)!r}).glob("lib/python*/site-packages"))
        own = metadata.distribution({DISTRIBUTION!r})
        if own.files is None or not any(f.name == "RECORD" for f in own.files):
            sys.exit("not installed from a wheel")
        for file in own.files:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)
        home = Path(own.locate_file(""))
        lines = [p for p in sys.path if p.endswith("site-packages") and Path(p) != home]
        for file in ("kvstrata_host", "kvstrata_ci_host"):
            for found in home.glob(f"{{file}}*"):
                (site / found.name).symlink_to(found)
        seams = home / "kvstrata" / "seams"
        (site / "kvstrata" / "seams").symlink_to(seams)
        (site / "base.pth").write_text("\\n".join(lines))
        print(site)
        """
    )
    if "not installed from a wheel" in copied.stderr:
        pytest.skip("the slice under test is not installed from a wheel")
    assert copied.returncode == 0, copied.stderr
    python = environment / "bin" / "python"

    def look_there() -> dict[str, object]:
        script = f"{LOAD}\nTARGETS = {targets()!r}\n{LOOK}"
        result = subprocess.run(
            [str(python), "-W", "ignore", "-c", script],
            env={**os.environ, "SGLANG_PLATFORM": "kvstrata_host", "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        seen = json.loads(result.stdout.splitlines()[-1])
        assert isinstance(seen, dict)
        return seen

    assert look_there()["offered"] == [True, True]
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "uninstall", "-y", DISTRIBUTION],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert look_there() == untouched


def test_an_sglang_that_is_not_the_pinned_one_is_refused_when_the_backend_is_chosen() -> None:
    result = run(
        f"""
        {LOAD}
        import dataclasses
        from importlib import metadata
        from kvstrata.kvcr import StartupError, plugin
        from kvstrata.seams import Pin

        def refusal():
            try:
                plugin._switch_on()
            except StartupError as error:
                print(type(error.__cause__).__name__, error.__cause__.reason.name, error)

        pinned = plugin.SEAMS
        changed = dataclasses.replace(
            pinned.hooks[0],
            pins={{v: Pin(pin.target, "0" * 16) for v, pin in pinned.hooks[0].pins.items()}},
        )
        plugin.SEAMS = dataclasses.replace(pinned, hooks=(changed, *pinned.hooks[1:]))
        refusal()
        plugin.SEAMS = pinned
        version = metadata.version
        metadata.version = lambda name: "9.9.9" if name == "sglang" else version(name)
        refusal()
        metadata.version = version
        print(plugin._switch_on().__name__)
        """
    )
    assert result.returncode == 0, result.stderr
    drifted, unknown, accepted = result.stdout.strip().splitlines()[-3:]
    assert drifted.startswith("SeamError DRIFTED kvstrata-kvcr cannot hook")
    assert "_create_builtin_backend" in drifted
    assert unknown.startswith("SeamError UNKNOWN_VERSION")
    assert "9.9.9" in unknown
    assert accepted == "KvcrStore"


def test_a_changed_fingerprint_stops_a_server(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    (plugins / "drift-1.dist-info").mkdir(parents=True)
    (plugins / "drift-1.dist-info" / "METADATA").write_text("Name: drift\nVersion: 1\n")
    (plugins / "drift-1.dist-info" / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\ndrift = drift:load\n"
    )
    (plugins / "drift.py").write_text(
        textwrap.dedent(
            """
            import dataclasses
            from kvstrata.kvcr import plugin
            from kvstrata.seams import Pin

            def load():
                first, *others = plugin.SEAMS.hooks
                pins = {v: Pin(pin.target, "0" * 16) for v, pin in first.pins.items()}
                first = dataclasses.replace(first, pins=pins)
                plugin.SEAMS = dataclasses.replace(plugin.SEAMS, hooks=(first, *others))
            """
        )
    )
    build_model(tmp_path / "model", TINY)
    spec = ServerSpec(
        name="drifted",
        model=tmp_path / "model",
        log=tmp_path / "server.log",
        context_tokens=1024,
        max_total_tokens=2048,
        storage_backend="kvcr",
        extra_config={"dram_bytes": "1MiB"},
        extra_env={"PYTHONPATH": str(plugins)},
    )
    with pytest.raises(StartError):
        Server(spec, start_timeout_s=150).start()
    log = spec.log.read_text()
    assert "StartupError: kvstrata-kvcr cannot hook" in log
    assert "kvstrata.seams.error.SeamError" in log
    assert "(drifted)" in log


def test_the_hooks_command_shows_every_hook_as_applied() -> None:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "kvstrata.seams", "--json"],
        env={**os.environ, "SGLANG_PLATFORM": "kvstrata_host", "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert all(target in result.stdout for target in targets())
    assert "_initialize_nixl" in result.stdout


def test_the_package_is_importable_where_its_hosts_are_missing() -> None:
    result = run(
        """
        import sys
        sys.modules.update(dict.fromkeys(("sglang", "kvcr", "nixl", "torch")))
        import kvstrata.kvcr, kvstrata.kvcr.plugin
        print(kvstrata.kvcr.KvcrConfig().control_port)
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "28500"


def test_the_plugin_module_imports_none_of_the_heavy_packages() -> None:
    result = run(
        """
        import sys
        import kvstrata.kvcr.plugin
        print([m for m in ("torch", "sglang", "kvcr", "nixl", "numpy") if m in sys.modules])
        """
    )
    assert result.stdout.strip() == "[]"
