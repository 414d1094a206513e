# SPDX-License-Identifier: Apache-2.0
"""Processes in which kvcached's autopatch is at work as SGLang is imported, and nothing else."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PRELUDE = """\
import json, warnings
warnings.simplefilter("ignore")
import sglang
from sglang.srt.runtime_context import get_context
get_context().override_server_args().install()
from sglang.srt.mem_cache import deepseek_v4_memory_pool, memory_pool
from sglang.srt.mem_cache.allocator import swa
from kvcached.integration.sglang.exact_id.patches import is_wrapped
pool_class = deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool
result = {
    "patched": is_wrapped(pool_class, "__init__"),
    "kvcached": swa.PagedTokenToKVPoolAllocator.__name__,
    "mha": memory_pool.MHATokenToKVPool.__name__,
}
"""

DSV4 = """\
from leases_on_host import model
pool = model.make_pool()
allocator = model.make_allocator(pool)
result["pool"] = type(pool.swa_kv_pool).__name__
result["allocators"] = [
    type(allocator.full_attn_allocator).__name__, type(allocator.swa_attn_allocator).__name__
]
T = model.torch.tensor
tokens = allocator.alloc_extend(T([0]), T([0]), T([300]), T([300]), T([-1]), 300)
result["pages"] = model.pages_of(tokens)
allocator.free(tokens)
result["available"] = allocator.available_size() // model.PAGE_TOKENS
"""

MISSING = """\
import sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler as linker
del linker._build_deepseek_v4_device_pool_group
from kvcached.integration.patch_base import PatchManager
from kvcached.integration.sglang.exact_id import patches
manager = PatchManager("sglang")
manager.register_patches([
    patches.DeepSeekV4AllocatorPatch(), patches.DeepSeekV4HiCachePatch(),
    patches.DeepSeekV4LinkerPatch(), patches.DeepSeekV4PoolPatch(),
])
result["applied"] = manager.apply_all_patches()
result["patched"] = is_wrapped(pool_class, "__init__")
"""


def run(body: str, **environment: str) -> dict[str, Any]:
    """What `body` left in `result`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KVCACHED_") and name != "ENABLE_KVCACHED"
    }
    done = subprocess.run(
        [sys.executable, "-c", f"{PRELUDE}{body}\nprint(json.dumps(result))"],
        env={**inherited, "TRITON_INTERPRET": "1", **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("value", ["0", ""])
def test_with_the_switch_off_nothing_is_patched_and_everything_is_sglangs(value: str) -> None:
    result = run(DSV4, ENABLE_KVCACHED=value)

    assert not result["patched"]
    assert result["pool"] == "DeepSeekV4SingleKVPool"
    assert result["allocators"] == ["PagedTokenToKVPoolAllocator"] * 2
    assert result["mha"] == "MHATokenToKVPool"


def test_a_deepseek_v4_process_has_managed_swa_under_sglangs_ids() -> None:
    result = run(DSV4, ENABLE_KVCACHED="1", KVCACHED_CONTIGUOUS_LAYOUT="false")

    assert result["patched"]
    assert result["kvcached"] == "ElasticPagedTokenToKVPoolAllocator"
    assert result["pool"] == "BackedDeepSeekV4SingleKVPool"
    assert result["allocators"] == ["LeasedPagedAllocator"] * 2
    assert (result["pages"], result["available"]) == ([1, 2], 40)


def test_a_deepseek_v4_process_with_mixed_layers_has_native_pools_that_work() -> None:
    result = run(DSV4, ENABLE_KVCACHED="1")

    assert result["pool"] == "DeepSeekV4SingleKVPool"
    assert result["allocators"] == ["PagedTokenToKVPoolAllocator"] * 2
    assert (result["pages"], result["available"]) == ([1, 2], 40)


def test_pools_stay_native_where_one_of_the_patches_before_is_refused() -> None:
    result = run(MISSING, ENABLE_KVCACHED="0")

    assert result["applied"] == {
        "deepseek_v4_allocator": True,
        "deepseek_v4_hicache": True,
        "deepseek_v4_linker": False,
        "deepseek_v4_pool": False,
    }
    assert not result["patched"]
