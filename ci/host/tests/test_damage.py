# SPDX-License-Identifier: Apache-2.0
"""Damage on purpose: off unless asked for, and real when it is."""

import json
import os
import subprocess
import sys

import pytest

from kvstrata_host import damage
from kvstrata_host.plugin import PLATFORM

# Two pages are restored one after the other, and a third fails, through SGLang's own controller and
# host pool.
_RESTORE = """
import json
from types import SimpleNamespace

import torch
from sglang.srt.managers.cache_controller import HiCacheController, PrefetchAck
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.plugins import load_plugins

load_plugins()
device = MHATokenToKVPool(32, 4, torch.float32, 2, 8, 3, "cpu", False)
pool = MHATokenToKVPoolHost(device, 2.0, 0, 4, "page_first_direct", pin_memory=False)
pool.kv_buffer.copy_(torch.rand_like(pool.kv_buffer) + 1)
before = pool.kv_buffer.clone()
controller = SimpleNamespace(
    storage_host_pool=pool,
    prefetch_completion_sync_groups=[],
    _all_reduce=lambda tensor, op, groups: None,
)
operation = SimpleNamespace(host_indices=torch.arange(8, 20))
for tokens in (4, 8, 8, None):
    ack = PrefetchAck(rid="r", operation=operation, completed_tokens=tokens)
    HiCacheController._reduce_prefetch_ack(controller, ack)
pages = range(pool.page_num)
print(json.dumps({
    "changed": [p for p in pages if not torch.equal(pool.kv_buffer[:, p], before[:, p])],
    "negated": [p for p in pages if torch.equal(pool.kv_buffer[:, p], -before[:, p])],
}))
"""


def _restore_two_of_three_pages(**variables: str) -> dict[str, object]:
    kept = {name: value for name, value in os.environ.items() if name != damage.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", _RESTORE],
        env={**kept, "SGLANG_PLATFORM": PLATFORM, "CUDA_VISIBLE_DEVICES": "", **variables},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_damage_is_off_unless_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(damage.VARIABLE, raising=False)
    assert not damage.requested()
    monkeypatch.setenv(damage.VARIABLE, "")
    assert not damage.requested()
    monkeypatch.setenv(damage.VARIABLE, damage.RESTORED_PAGES)
    assert damage.requested()


def test_an_unknown_kind_of_damage_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(damage.VARIABLE, "everything")
    with pytest.raises(ValueError, match=r"KVSTRATA_HOST_DAMAGE='everything'.*restored-pages"):
        damage.requested()


@pytest.mark.integration
@pytest.mark.timeout(330)
def test_pages_are_left_as_they_were_read_when_damage_is_off() -> None:
    assert _restore_two_of_three_pages() == {"changed": [], "negated": []}


@pytest.mark.integration
@pytest.mark.timeout(330)
def test_exactly_the_restored_pages_are_negated_when_damage_is_on() -> None:
    found = _restore_two_of_three_pages(**{damage.VARIABLE: damage.RESTORED_PAGES})
    assert found == {"changed": [2, 3], "negated": [2, 3]}
