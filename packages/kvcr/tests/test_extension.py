# SPDX-License-Identifier: Apache-2.0
"""What another package may change, and that nothing is changed without one."""

from collections.abc import Mapping
from typing import Any

import pytest
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

from kvstrata.kvcr import ConfigError, extension
from kvstrata.kvcr.extension import ENABLEMENT, Extension, Surroundings, register
from kvstrata.kvcr.staging import STAGED
from kvstrata.kvcr.store import KvcrStore
from kvstrata_host.kvcr.replica import RANK, settings
from kvstrata_host.rank import bring_up

OPTIONS = {"anything": True}


@pytest.fixture(autouse=True)
def unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No extension, whichever is installed; the one that is comes back afterwards."""
    bring_up()
    monkeypatch.setattr(extension, "_registered", [])


def ways_of(**changes: Any) -> Extension:
    config = HiCacheStorageConfig(**{**vars(RANK), "extra_config": settings(**changes)})
    ways: Extension = KvcrStore(config, "unused").ways
    return ways


class Other(Extension):
    def __init__(self, inner: Extension) -> None:
        self.inner = inner


def offered(seen: list[tuple[Mapping[str, object], Surroundings]]) -> None:
    def make(
        options: Mapping[str, object], surroundings: Surroundings, inner: Extension
    ) -> Extension:
        seen.append((options, surroundings))
        return Other(inner)

    register(make)


def test_options_that_nobody_reads_are_refused_with_what_to_install() -> None:
    with pytest.raises(ConfigError) as error:
        ways_of(tuning=OPTIONS)
    assert error.value.setting == "tuning"
    assert error.value.value == OPTIONS
    assert error.value.fix == "Run: pip install kvstrata-kvcr-tuning."


def test_a_list_of_plugins_that_leaves_it_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "kvstrata_kvcr")
    with pytest.raises(ConfigError, match="add kvstrata_kvcr_tuning to SGLANG_PLUGINS"):
        ways_of(tuning=OPTIONS)


def test_without_options_the_backend_has_its_own_ways_whoever_is_installed() -> None:
    seen: list[Any] = []
    offered(seen)
    assert ways_of() is ENABLEMENT
    assert ways_of(tuning={}) is ENABLEMENT
    assert ways_of(peer_restore_mode="staged") is STAGED
    assert seen == []


def test_an_extension_is_told_what_it_is_made_for_and_what_is_within_it() -> None:
    seen: list[tuple[Mapping[str, object], Surroundings]] = []
    offered(seen)
    extra = settings(tuning=OPTIONS, peer_restore_mode="staged")
    config = HiCacheStorageConfig(
        **{**vars(RANK), "tp_rank": 1, "tp_size": 2, "extra_config": extra}
    )
    ways = KvcrStore(config, "unused").ways
    assert isinstance(ways, Other)
    assert ways.inner is STAGED
    ((options, surroundings),) = seen
    assert options == OPTIONS
    assert surroundings.rank == 1
    assert surroundings.topology is config
    assert surroundings.own.port == extra["control_port"]


def test_the_ways_of_the_backend_are_those_of_its_runner() -> None:
    calls: list[tuple[Any, ...]] = []

    class Watched:
        """Notes what it is asked for."""

        def __getattr__(self, name: str) -> Any:
            return lambda *given: calls.append((name, *given))

    runner: Any = Watched()
    batch: Any = Watched()
    batch.blocks = {b"key": ["place"]}
    batch.only = lambda keys: {key: batch.blocks[key] for key in keys}
    ENABLEMENT.locate(runner, [], None)
    ENABLEMENT.restore(runner, batch, {}, None)
    ENABLEMENT.deposit(runner, batch)
    assert calls == [("query", [], None), ("deliver", {}, None), ("deposit", batch.blocks)]
    assert ENABLEMENT.stage("plan") is ENABLEMENT.stage("restore")
