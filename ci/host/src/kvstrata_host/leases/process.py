# SPDX-License-Identifier: Apache-2.0
"""A process that SGLang has loaded its plugins in, those of kvcached and of the slices too."""

import json
import os
import subprocess
import sys
from typing import Any

_PRELUDE = """\
import json, warnings
warnings.simplefilter("ignore")
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_context
get_context().override_server_args().install()
load_plugins()
from sglang.srt.mem_cache import memory_pool
from sglang.srt.mem_cache.allocator import swa
from sglang.srt.plugins.hook_registry import HookRegistry
def hooks(seams):
    return sum(hook.pins["0.5.20"].target in HookRegistry._patched for hook in seams.hooks)
result = {
    "kvcached": swa.PagedTokenToKVPoolAllocator.__name__,
    "mha": memory_pool.MHATokenToKVPool.__name__,
}
"""


def run(body: str, **environment: str) -> dict[str, Any]:
    """What `body` left in `result`; it may call `hooks` to count those of a Seams that are there.

    Of the settings of kvcached, only those of `environment` are set.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KVCACHED_") and name != "ENABLE_KVCACHED"
    }
    done = subprocess.run(
        [sys.executable, "-c", f"{_PRELUDE}{body}\nprint(json.dumps(result))"],
        env={**inherited, "TRITON_INTERPRET": "1", **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
