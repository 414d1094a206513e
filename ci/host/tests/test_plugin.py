# SPDX-License-Identifier: Apache-2.0
"""What SGLang finds and gets, and that nothing missing or unknown goes unnoticed."""

import ast
import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest

from kvstrata_host import plugin
from kvstrata_host.copies import COPIES

# Copies of the layouts page_head and page_first_kv_split, which `ServerSpec` does not offer.
OTHER_LAYOUTS = {"transfer_kv_all_layer_lf_ph", "transfer_kv_per_layer_ph_lf"}
ASCEND = {"transfer_kv_dim_exchange"}


def selected(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("SGLANG_PLATFORM", "kvstrata_host")
    monkeypatch.setattr(plugin, "version", lambda name: version)


def calls() -> Iterator[ast.Call]:
    """Every call of a copy in SGLang's host pools."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    for module in plugin.POOL_MODULES:
        path = Path(spec.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and name_of(node).startswith("transfer_kv_"):
                yield node


def name_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def test_sglang_finds_the_platform_and_the_plugin() -> None:
    for group in ("sglang.srt.platforms", "sglang.srt.plugins"):
        found = {entry.name for entry in entry_points(group=group)}
        assert "kvstrata_host" in found


def test_every_copy_that_sglang_calls_is_provided() -> None:
    called = {name_of(call) for call in calls()}
    assert called - OTHER_LAYOUTS - ASCEND == set(COPIES)


def test_every_call_in_sglang_fits_the_signature_of_its_copy() -> None:
    provided = [call for call in calls() if name_of(call) in COPIES]
    assert len(provided) > 40
    for call in provided:
        assert not call.args
        keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg is not None}
        inspect.signature(COPIES[name_of(call)]).bind(**keywords)


def test_a_module_gets_the_copies_that_it_lacks_and_keeps_its_own() -> None:
    module, own = ModuleType("pool"), object()
    module.__dict__["transfer_kv_direct"] = own
    added = plugin.install_copies(module)
    assert set(added) == set(COPIES) - {"transfer_kv_direct"}
    assert vars(module)["transfer_kv_direct"] is own
    assert all(vars(module)[name] is COPIES[name] for name in added)


def test_pinned_memory_is_turned_off_however_it_was_asked_for() -> None:
    def init(self: object, layout: str, pin_memory: bool = True, device: str = "cpu") -> None:
        del self, layout, pin_memory, device

    unpin = plugin.without_pinning(init)
    for args, kwargs in (
        unpin(1, "lf"),
        unpin(1, "lf", True),
        unpin(1, "lf", pin_memory=True),
    ):
        bound = inspect.signature(init).bind(*args, **kwargs)
        assert bound.arguments == {"self": 1, "layout": "lf", "pin_memory": False}


def test_a_pool_without_pinned_memory_is_refused_by_name() -> None:
    def init(self: object) -> None:
        del self

    with pytest.raises(plugin.HostSetupError, match=r"init has no parameter pin_memory"):
        plugin.without_pinning(init)


@pytest.mark.parametrize("chosen", ["", "other"])
def test_nothing_happens_unless_the_platform_is_selected(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected(monkeypatch, version="0.0.1")
    monkeypatch.setenv("SGLANG_PLATFORM", chosen)
    assert plugin.activate() is None
    plugin.load()


def test_another_version_of_sglang_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    selected(monkeypatch, version="0.6.0")
    for entry_point in (plugin.activate, plugin.load):
        with pytest.raises(
            plugin.HostSetupError, match=r"supports sglang 0\.5\.20, 0\.5\.21; found: 0\.6\.0"
        ):
            entry_point()


def test_a_missing_module_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    selected(monkeypatch, version="0.5.20")
    monkeypatch.setattr(plugin, "POOL_MODULES", ("sglang_of_another_name.pools",))
    with pytest.raises(plugin.HostSetupError, match=r"cannot import sglang_of_another_name\.pools"):
        plugin.load()


def test_the_error_is_none_that_sglang_swallows() -> None:
    assert not issubclass(plugin.HostSetupError, Exception)


PROBE = """
from sglang.srt.platforms import current_platform
from sglang.srt.plugins import load_plugins
try:
    current_platform.get_mha_kv_pool_cls()
except SystemExit as refusal:
    print(refusal)
load_plugins()
print(type(current_platform).__name__, current_platform.get_mha_kv_pool_cls().__name__)
"""


@pytest.mark.integration
@pytest.mark.timeout(150)
def test_sglang_chooses_the_platform_which_gives_no_pool_without_its_plugin() -> None:
    environment = {
        **os.environ,
        "SGLANG_PLATFORM": "kvstrata_host",
        "SGLANG_PLUGINS": "kvstrata_host",
        "TRITON_INTERPRET": "1",
    }
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    refusal, chosen = result.stdout.splitlines()
    assert "the plugin 'kvstrata_host' was not loaded (SGLANG_PLUGINS='kvstrata_host')" in refusal
    assert chosen == "HostPlatform MHATokenToKVPool"
