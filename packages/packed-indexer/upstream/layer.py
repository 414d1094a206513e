# SPDX-License-Identifier: Apache-2.0
"""packed-indexer as a pull request to kvcached, on c4-kv."""

from dataclasses import replace
from pathlib import Path

from stackkit.export import File, folder, layer_of
from stackkit.export.kvcached import headed, registered

BELOW = layer_of(Path(__file__).parents[2] / "c4-kv" / "upstream" / "layer.py")
PACKAGE = BELOW.names.modules["kvstrata.exact_id"]
CHECKS = BELOW.names.modules["kvstrata_host.leases"]
HOME = PACKAGE.replace(".", "/")

LAYER = replace(
    BELOW,
    subject="[SGLang] Lease the pages of DeepSeek-V4's packed index keys",
    body="""
FP8 and FP4 index keys, packed with their scales, follow SGLang's full page ids and are leased
together with C4 KV and the sliding window: a page that has no memory in one of them is a miss in
all.

Split payload and scales of AITER, and the keys of draft models, stay SGLang's own.

New test for the CPU manifest: tests/test_sglang_exact_id_packed_indexer.py.
""",
    names=replace(
        BELOW.names,
        modules={
            **BELOW.names.modules,
            "kvstrata.packed_indexer": f"{PACKAGE}.packed_indexer",
            "kvstrata.packed_indexer.pool": f"{PACKAGE}.indexer_pool",
            "kvstrata.packed_indexer.plugin": f"{CHECKS}.packed_indexer.plugin",
        },
    ),
    files=(
        File("src/kvstrata/packed_indexer/pool.py", f"{HOME}/indexer_pool.py", (headed,)),
        File("upstream/packed_indexer.py", f"{HOME}/packed_indexer.py", (headed,)),
        File(
            "upstream/test_packed_indexer.py",
            "tests/test_sglang_exact_id_packed_indexer.py",
            (headed,),
        ),
    ),
    edits=registered(
        f"{PACKAGE}.packed_indexer",
        "DeepSeekV4IndexerPatch",
        versions="SGLANG_RANGE",
        behind="(DeepSeekV4C4Patch(), SGLANG_RANGE)",
    ),
    left_out={"hooks.py, plugin.py": "packed_indexer.py stands in their place"},
    helpers=(
        *BELOW.helpers_in(CHECKS, "packages/c4-kv"),
        File("upstream/checks/plugin.py", f"{CHECKS}/packed_indexer/plugin.py"),
        *folder(
            "tests",
            "tests",
            "conftest.py test_any_order.py test_gpu.py test_layout.py test_lifetimes.py "
            "test_native.py",
        ),
    ),
)
