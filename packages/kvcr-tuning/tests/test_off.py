# SPDX-License-Identifier: Apache-2.0
"""With every option off, the backend is exactly that of kvstrata-kvcr alone."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from kvstrata.kvcr.extension import ENABLEMENT, Extension
from kvstrata.kvcr.runner import Runner
from kvstrata.kvcr.session import Session
from kvstrata.kvcr_tuning import TuningConfig
from kvstrata.kvcr_tuning.around import Around
from kvstrata_host.kvcr.replica import PATIENT, PlainReplica, pools_of, settings

from .ways import ways_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

OFF = {name: getattr(TuningConfig(), name) for name in TuningConfig.__struct_fields__}


@pytest.mark.parametrize("tuning", [{}, OFF], ids=["not-mentioned", "off"])
def test_with_every_option_off_a_store_uses_the_same_objects(tuning: dict[str, object]) -> None:
    assert ways_of(tuning) is ENABLEMENT
    replica = PlainReplica(pools_of("mha", "page_first"), settings(**PATIENT, tuning=tuning))
    try:
        session = replica.store._session
        assert session is not None
        assert session.ways is ENABLEMENT
        assert type(session) is Session
        assert type(session.runner) is Runner
    finally:
        replica.close()


def test_one_option_that_is_on_is_noticed() -> None:
    assert ways_of({**OFF, "combined_io": True}) is not ENABLEMENT


def test_an_option_leaves_alone_whatever_it_does_not_change() -> None:
    """Each method of an extension is handed on by what all options derive from."""
    own = {name for name in vars(Extension) if not name.startswith("_")}
    handed_on = set(vars(Around)) | set(vars(Around(ENABLEMENT)))
    assert own <= handed_on


def test_the_package_has_no_hooks_of_its_own() -> None:
    entries = metadata.distribution("kvstrata-kvcr-tuning").entry_points
    assert [(entry.group, entry.name) for entry in entries] == [
        ("sglang.srt.plugins", "kvstrata_kvcr_tuning")
    ]


def test_loading_the_plugin_imports_neither_kvcr_nor_sglang() -> None:
    script = (
        "import sys; from kvstrata.kvcr_tuning.plugin import load; load(); "
        "print(sorted({'kvcr', 'nixl', 'sglang', 'torch', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]"
