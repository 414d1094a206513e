# SPDX-License-Identifier: Apache-2.0
import types

import pytest

from kvstrata.exact_id import IdSpace, ownership
from kvstrata.exact_id.ownership import INDEXER
from kvstrata.packed_indexer import DeepSeekV4IndexerPatch


@pytest.fixture
def patch(monkeypatch):
    monkeypatch.setattr(ownership, "_claims", {})
    made = DeepSeekV4IndexerPatch()
    monkeypatch.setattr(made, "initialize_version_info", lambda: True)
    wrappers = {"_make_indexer_pool": lambda original: original}
    monkeypatch.setattr(made, "wrappers", lambda: wrappers)
    return made


def a_module(**methods):
    module = types.ModuleType("deepseek_v4_memory_pool")
    module.DeepSeekV4TokenToKVPool = type("DeepSeekV4TokenToKVPool", (), methods)
    return module


def test_the_indexer_is_managed_once_sglang_is_patched(patch):
    assert patch.apply(a_module(_make_indexer_pool=lambda pool: None))

    assert ownership.claims()[INDEXER].space is IdSpace.FULL


def test_the_indexer_is_left_to_sglang_where_the_target_is_gone(patch):
    with pytest.raises(AttributeError, match="_make_indexer_pool"):
        patch.apply(a_module())

    assert ownership.claims() == {}


def test_the_indexer_is_left_to_sglang_of_another_release(patch, monkeypatch):
    monkeypatch.setattr(patch, "initialize_version_info", lambda: False)

    assert not patch.apply(a_module(_make_indexer_pool=lambda pool: None))
    assert ownership.claims() == {}
