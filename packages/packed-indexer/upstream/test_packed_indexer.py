# SPDX-License-Identifier: Apache-2.0
import types

from kvstrata.exact_id import IdSpace, ownership
from kvstrata.exact_id.ownership import INDEXER
from kvstrata.packed_indexer import DeepSeekV4IndexerPatch


def test_the_indexer_is_managed_once_sglang_is_patched(monkeypatch):
    monkeypatch.setattr(ownership, "_claims", {})
    patch = DeepSeekV4IndexerPatch()
    monkeypatch.setattr(patch, "initialize_version_info", lambda: True)
    # The real wrapper imports SGLang.
    wrappers = {"_make_indexer_pool": lambda original: original}
    monkeypatch.setattr(patch, "wrappers", lambda: wrappers)
    module = types.ModuleType("deepseek_v4_memory_pool")
    methods = {"_make_indexer_pool": lambda pool: None}
    module.DeepSeekV4TokenToKVPool = type("DeepSeekV4TokenToKVPool", (), methods)

    assert patch.apply(module)

    claims = ownership.claims().items()
    assert [(name, each.space) for name, each in claims] == [(INDEXER, IdSpace.FULL)]
