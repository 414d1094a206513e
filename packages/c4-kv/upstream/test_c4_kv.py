# SPDX-License-Identifier: Apache-2.0
import types

import pytest

from kvstrata.c4_kv import DeepSeekV4C4Patch
from kvstrata.exact_id import IdSpace, ownership
from kvstrata.exact_id.ownership import C4


@pytest.fixture
def patch(monkeypatch):
    monkeypatch.setattr(ownership, "_claims", {})
    made = DeepSeekV4C4Patch()
    monkeypatch.setattr(made, "initialize_version_info", lambda: True)
    monkeypatch.setattr(
        made, "wrappers", lambda: {"get_contiguous_buf_infos": lambda original: original}
    )
    return made


def a_module(**methods):
    module = types.ModuleType("deepseek_v4_memory_pool")
    module.DeepSeekV4TokenToKVPool = type("DeepSeekV4TokenToKVPool", (), methods)
    return module


def test_c4_kv_is_managed_once_sglang_is_patched(patch):
    assert patch.apply(a_module(get_contiguous_buf_infos=lambda pool: None))

    assert ownership.claims()[C4].space is IdSpace.FULL


def test_c4_kv_is_left_to_sglang_where_the_target_is_gone(patch):
    with pytest.raises(AttributeError, match="get_contiguous_buf_infos"):
        patch.apply(a_module())

    assert ownership.claims() == {}


def test_c4_kv_is_left_to_sglang_of_another_release(patch, monkeypatch):
    monkeypatch.setattr(patch, "initialize_version_info", lambda: False)

    assert not patch.apply(a_module(get_contiguous_buf_infos=lambda pool: None))
    assert ownership.claims() == {}
