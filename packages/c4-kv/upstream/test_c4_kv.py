# SPDX-License-Identifier: Apache-2.0
import types

from kvstrata.c4_kv import DeepSeekV4C4Patch
from kvstrata.exact_id import IdSpace, ownership
from kvstrata.exact_id.ownership import C4


def test_c4_kv_is_managed_once_sglang_is_patched(monkeypatch):
    monkeypatch.setattr(ownership, "_claims", {})
    patch = DeepSeekV4C4Patch()
    monkeypatch.setattr(patch, "initialize_version_info", lambda: True)
    module = types.ModuleType("deepseek_v4_memory_pool")
    methods = {"get_contiguous_buf_infos": lambda pool: None}
    module.DeepSeekV4TokenToKVPool = type("DeepSeekV4TokenToKVPool", (), methods)

    assert patch.apply(module)

    assert [(name, each.space) for name, each in ownership.claims().items()] == [(C4, IdSpace.FULL)]
