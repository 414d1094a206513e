# SPDX-License-Identifier: Apache-2.0
"""What only an exported tree has: tests that SGLang's parser finds, and what hooks did inline."""

from pathlib import Path

import pytest
import sglang
from sglang.srt.managers import cache_controller
from sglang.test.ci.ci_register import HWBackend, collect_tests
from tests.trees import TreeRank

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
