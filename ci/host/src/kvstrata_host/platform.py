# SPDX-License-Identifier: Apache-2.0
"""The out-of-tree platform: SGLang's own CPU device operations with its stock pools.

The plain torch attention and native operators run anywhere torch does; SGLang's in-tree CPU engine
would need its compiled CPU kernels.
"""

from __future__ import annotations

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from kvstrata_host.plugin import verify


class HostPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
    """A pool class is given out only once the copies and hooks are verified to be in place."""

    _enum = PlatformEnum.OOT

    def is_pin_memory_available(self, device: object = None) -> bool:
        return False

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"

    def get_mha_kv_pool_cls(self) -> type:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return _verified(MHATokenToKVPool)

    def get_mla_kv_pool_cls(self) -> type:
        from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

        return _verified(MLATokenToKVPool)

    def get_dsa_kv_pool_cls(self) -> type:
        from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

        return _verified(DSATokenToKVPool)

    def get_paged_allocator_cls(self) -> type:
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

        return _verified(PagedTokenToKVPoolAllocator)


def _verified(pool: type) -> type:
    verify()
    return pool
