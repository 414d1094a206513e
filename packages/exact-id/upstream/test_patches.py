# SPDX-License-Identifier: Apache-2.0
"""What is patched, and in which order; the pools themselves are tested with SGLang."""

import ast
import types
from pathlib import Path

import pytest

from kvstrata.exact_id import Claim, IdSpace, ownership, patches
from kvstrata.exact_id.ownership import INDEXER

AUTOPATCH = Path(patches.__file__).parents[1] / "autopatch.py"


class Pool:
    def size(self, extra: int) -> int:
        """Of the pool."""
        return 1 + extra


def doubled(original, pool, extra):
    return 2 * original(pool, extra)


@pytest.fixture
def pool_class():
    return type("Pool", (Pool,), dict(vars(Pool)))


def test_a_wrapper_gets_the_original_and_looks_like_it(pool_class):
    patches.wrap(pool_class, {"size": doubled})

    assert pool_class().size(2) == 6
    assert pool_class.size.__doc__ == "Of the pool."
    assert patches.is_wrapped(pool_class, "size")


def test_a_second_application_changes_nothing(pool_class):
    patches.wrap(pool_class, {"size": doubled})
    first = pool_class.size
    patches.wrap(pool_class, {"size": doubled})

    assert pool_class.size is first


def test_nothing_is_wrapped_where_one_target_is_gone(pool_class):
    with pytest.raises(AttributeError, match="gone"):
        patches.wrap(pool_class, {"size": doubled, "gone": doubled})

    assert pool_class().size(2) == 3


def test_another_release_of_sglang_is_not_patched(monkeypatch):
    patch = patches.DeepSeekV4HiCachePatch()
    ranges = patch.wrap_target._version_ranges

    assert [each.contains("0.5.20") for each in ranges] == [True]
    assert not any(each.contains(other) for each in ranges for other in ("0.5.19", "0.5.21"))


def test_a_wrapper_of_a_module_replaces_its_function():
    module = types.ModuleType("a_module")
    module.size = lambda extra: extra

    patches.wrap(module, {"size": lambda original, extra: original(extra) + 1})

    assert module.size(3) == 4


class ClaimingPatch(patches.ClaimPatch):
    claim = Claim(INDEXER, IdSpace.FULL, "the test")

    def wrappers(self):
        return {"size": doubled}


@pytest.fixture
def claiming(monkeypatch):
    monkeypatch.setattr(ownership, "_claims", {})
    made = ClaimingPatch()
    monkeypatch.setattr(made, "initialize_version_info", lambda: True)
    return made


def a_module(**methods):
    module = types.ModuleType("deepseek_v4_memory_pool")
    module.DeepSeekV4TokenToKVPool = type("DeepSeekV4TokenToKVPool", (), methods)
    return module


def test_a_pool_is_managed_once_sglang_is_patched(claiming):
    assert claiming.apply(a_module(size=lambda pool, extra: extra))

    assert ownership.claims() == {INDEXER: claiming.claim}


def test_a_pool_is_left_to_sglang_where_the_target_is_gone(claiming):
    with pytest.raises(AttributeError, match="size"):
        claiming.apply(a_module())

    assert ownership.claims() == {}


def test_a_pool_is_left_to_sglang_of_another_release(claiming, monkeypatch):
    monkeypatch.setattr(claiming, "initialize_version_info", lambda: False)

    assert not claiming.apply(a_module(size=lambda pool, extra: extra))
    assert ownership.claims() == {}


def test_the_pool_is_patched_after_everything_that_it_depends_on():
    tree = ast.parse(AUTOPATCH.read_text(encoding="utf-8"))
    names = [
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.startswith("DeepSeekV4")
    ]

    assert set(names) >= {
        "DeepSeekV4AllocatorPatch",
        "DeepSeekV4HiCachePatch",
        "DeepSeekV4LinkerPatch",
    }
    needed = ("Allocator", "HiCache", "Linker")
    last = max(names.index(f"DeepSeekV4{each}Patch") for each in needed)
    assert names.index("DeepSeekV4PoolPatch") > last
