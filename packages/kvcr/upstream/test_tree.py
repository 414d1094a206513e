# SPDX-License-Identifier: Apache-2.0
"""What only an exported tree has: tests that SGLang's parser finds, and what hooks did inline."""

from pathlib import Path
from typing import Any

import pytest
import sglang
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.test.ci.ci_register import HWBackend, collect_tests

from kvstrata.kvcr import ConfigError, agreement
from kvstrata.kvcr.extension import ENABLEMENT, Extension
from kvstrata.kvcr.staging import STAGED
from kvstrata.kvcr.store import KvcrStore
from kvstrata_host.kvcr.replica import RANK, settings
from kvstrata_host.kvcr.shelf import Shelf
from kvstrata_host.kvcr.trees import TreeRank
from kvstrata_host.rank import bring_up

TREE = Path(sglang.__file__).parents[2]
FILES = sorted((TREE / "test" / "registered").rglob("kvcr/test_*.py"))


def test_every_exported_test_is_one_of_the_cpu_suite() -> None:
    found = collect_tests([str(file) for file in FILES])
    assert len(found) == len(FILES) > 0
    assert {each.backend for each in found} == {HWBackend.CPU}
    assert {each.effective_suite for each in found} == {"base-a-test-cpu"}


def test_a_rank_that_is_not_the_first_backs_up_replicated_kv_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class SecondOfTwo:
        tp_rank, tp_size = 1, 2
        _real = cache_controller.get_parallel()

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    rank = TreeRank("dsa")
    monkeypatch.setattr(cache_controller, "get_parallel", SecondOfTwo)
    assert rank.attach() == ""
    assert rank.controller.storage_config.is_mla_model
    assert rank.controller.storage_config.tp_rank == 1
    assert rank.controller.backup_skip is False
    rank.close()


def ways_of(**changes: Any) -> Extension:
    bring_up()
    config = HiCacheStorageConfig(**{**vars(RANK), "extra_config": settings(**changes)})
    ways: Extension = KvcrStore(config, "unused").ways
    return ways


def test_options_of_an_extension_are_refused_where_there_is_none() -> None:
    assert ways_of() is ENABLEMENT
    assert ways_of(tuning={}, peer_restore_mode="staged") is STAGED
    with pytest.raises(ConfigError, match="Remove tuning") as error:
        ways_of(tuning={"anything": True})
    assert error.value.setting == "tuning"


def test_ranks_that_differ_are_refused_before_a_store_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelves: list[Shelf] = []

    def make(*given: Any) -> Shelf:
        shelves.append(Shelf(*given))
        return shelves[-1]

    def differ(controller: object) -> None:
        raise ConfigError("tuning.anything", 1, "one value on all ranks", "Start them alike.")

    rank = TreeRank("mha")
    with monkeypatch.context() as changed:
        changed.setattr(agreement, "check_alike", differ)
        assert "tuning.anything" in rank.attach(make)
    assert rank.attach(make) == ""
    assert [shelf.calls for shelf in shelves] == [[], ["start"]]
    rank.close()


def test_an_extension_is_told_of_the_cache() -> None:
    told: list[object] = []

    class Told(Extension):
        def attached(self, cache: object) -> None:
            told.append(cache)

    class Extended(Shelf):
        ways = Told()

    rank = TreeRank("mha")
    assert rank.attach(Extended) == ""
    assert told == [rank.tree]
    rank.close()
