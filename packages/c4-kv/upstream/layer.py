# SPDX-License-Identifier: Apache-2.0
"""c4-kv as a pull request to kvcached, on exact-id."""

from dataclasses import replace
from pathlib import Path

from stackkit.export import File, folder, layer_of
from stackkit.export.kvcached import headed, registered

BELOW = layer_of(Path(__file__).parents[2] / "exact-id" / "upstream" / "layer.py")
PACKAGE = BELOW.names.modules["kvstrata.exact_id"]
CHECKS = BELOW.names.modules["kvstrata_host.leases"]

LAYER = replace(
    BELOW,
    subject="[SGLang] Lease the pages of DeepSeek-V4's C4 KV",
    body="""
C4 KV follows SGLang's full page ids. It is leased together with the sliding window, keeps its
memory while the window moves on, and gives it back as SGLang frees the full pages.

With HiSparse and in unified layouts it stays SGLang's own. PD transfer of a managed pool is
refused.

New test for the CPU manifest: tests/test_sglang_exact_id_c4_kv.py.
""",
    names=replace(
        BELOW.names,
        modules={
            **BELOW.names.modules,
            "kvstrata.c4_kv": f"{PACKAGE}.c4_kv",
            "kvstrata.c4_kv.plugin": f"{CHECKS}.c4_kv.plugin",
        },
    ),
    files=(
        File("upstream/c4_kv.py", f"{PACKAGE.replace('.', '/')}/c4_kv.py", (headed,)),
        File("upstream/test_c4_kv.py", "tests/test_sglang_exact_id_c4_kv.py", (headed,)),
    ),
    edits=registered(
        f"{PACKAGE}.c4_kv",
        "DeepSeekV4C4Patch",
        versions="SGLANG_RANGE",
        behind="(DeepSeekV4PoolPatch(), SGLANG_RANGE)",
    ),
    left_out={"hooks.py, plugin.py": "c4_kv.py stands in their place"},
    helpers=(
        *BELOW.helpers_in(CHECKS, "packages/exact-id"),
        File("upstream/checks/plugin.py", f"{CHECKS}/c4_kv/plugin.py"),
        *folder(
            "tests",
            "tests",
            "conftest.py test_any_order.py test_gpu.py test_layout.py test_lifetimes.py "
            "test_native.py test_prefix_cache.py test_whole_buffers.py",
        ),
    ),
)
