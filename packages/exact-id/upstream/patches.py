# SPDX-License-Identifier: Apache-2.0
"""SGLang's DeepSeek-V4 pools and allocators on leases of exact page ids."""

import functools
import types
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from kvcached.integration.patch_base import BasePatch
from kvcached.integration.version_utils import VersionAwarePatch, version_range

from kvstrata.exact_id.gating import SGLANG_VERSION
from kvstrata.exact_id.ownership import Claim, claim

SGLANG_RANGE = f"=={SGLANG_VERSION}"

_MARKER = "__kvcached_exact_id__"

Wrappers = Mapping[str, Callable[..., Any]]


def wrap(owner: object, wrappers: Wrappers) -> None:
    """Call each wrapper with the original as its first argument, in the place of the original.

    AttributeError if one is not there; then none has been replaced.
    """
    originals = {name: getattr(owner, name) for name in wrappers}
    for name, wrapper in wrappers.items():
        if not is_wrapped(owner, name):
            setattr(owner, name, _around(originals[name], wrapper))


def is_wrapped(owner: object, name: str) -> bool:
    return getattr(getattr(owner, name, None), _MARKER, False) is True


def _around(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(patched, _MARKER, True)
    return patched


class ExactIdPatch(VersionAwarePatch, BasePatch):
    """Wraps functions of a class, or of a module where there is no `target_class`."""

    library = "sglang"

    def apply(self, target_module: types.ModuleType) -> bool:
        if not self.initialize_version_info():
            return False
        return bool(self.wrap_target(target_module))

    @version_range(SGLANG_RANGE)
    def wrap_target(self, target_module: types.ModuleType) -> bool:
        owner = self._get_target_class(target_module) if self.target_class else target_module
        wrap(owner, self.wrappers())
        return True

    @abstractmethod
    def wrappers(self) -> Wrappers:
        """What is called in place of each function, by its name."""


class ClaimPatch(ExactIdPatch):
    """Has a pool of DeepSeek-V4 managed once what that takes is wrapped."""

    target_module = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
    target_class = "DeepSeekV4TokenToKVPool"
    claim: Claim

    def apply(self, target_module: types.ModuleType) -> bool:
        if not super().apply(target_module):
            return False
        claim(self.claim)
        return True


class DeepSeekV4AllocatorPatch(ExactIdPatch):
    """Lease full and sliding-window ids together, or take none."""

    target_module = "sglang.srt.mem_cache.allocator.swa"
    target_class = "SWATokenToKVPoolAllocator"
    patch_name = "deepseek_v4_allocator"

    def wrappers(self) -> Wrappers:
        from kvstrata.exact_id import swa

        return {
            "__init__": swa.build,
            "alloc_extend": swa.alloc_extend,
            "alloc_extend_swa_tail": swa.alloc_extend_swa_tail,
            "alloc_decode": swa.alloc_decode,
        }


class DeepSeekV4HiCachePatch(ExactIdPatch):
    """HiCache may not copy addresses without memory."""

    target_module = "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler"
    patch_name = "deepseek_v4_hicache"

    def wrappers(self) -> Wrappers:
        return {"build_deepseek_v4_hicache_stack": _build_hicache}


class DeepSeekV4LinkerPatch(ExactIdPatch):
    """A cache linker may not copy addresses without memory."""

    target_module = "sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler"
    patch_name = "deepseek_v4_linker"

    def wrappers(self) -> Wrappers:
        return {"_build_deepseek_v4_device_pool_group": _build_linker}


class DeepSeekV4PoolPatch(ExactIdPatch):
    """Decide who owns the memory of each pool, and make the managed ones.

    It comes last: where one of the others was refused, every pool stays SGLang's own.
    """

    target_module = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
    target_class = "DeepSeekV4TokenToKVPool"
    patch_name = "deepseek_v4_pool"

    def can_apply(self, target_module: types.ModuleType) -> bool:
        from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
        from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler, linker_pool_assembler

        needed = (
            *((SWATokenToKVPoolAllocator, name) for name in DeepSeekV4AllocatorPatch().wrappers()),
            (hybrid_pool_assembler, "build_deepseek_v4_hicache_stack"),
            (linker_pool_assembler, "_build_deepseek_v4_device_pool_group"),
        )
        return super().can_apply(target_module) and all(
            is_wrapped(owner, name) for owner, name in needed
        )

    def wrappers(self) -> Wrappers:
        from kvstrata.exact_id import construction

        return {
            "__init__": construction.build,
            "_make_kv_pool": construction.build_kv_pool,
            "get_state_buf_infos": _state_buffers,
        }


def _state_buffers(original: Callable[..., Any], kvcache: Any) -> Any:
    from kvstrata.exact_id.ownership import SWA
    from kvstrata.exact_id.whole_buffers import refuse

    refuse(kvcache, (SWA,), "PD transfer")
    return original(kvcache)


def _build_hicache(original: Callable[..., Any], *, kvcache: Any, **kwargs: Any) -> Any:
    from kvstrata.exact_id.ownership import POOLS
    from kvstrata.exact_id.whole_buffers import refuse

    refuse(kvcache, POOLS, "HiCache")
    return original(kvcache=kvcache, **kwargs)


def _build_linker(original: Callable[..., Any], kvcache: Any, *args: Any, **kwargs: Any) -> Any:
    from kvstrata.exact_id.ownership import POOLS
    from kvstrata.exact_id.whole_buffers import refuse

    refuse(kvcache, POOLS, "a cache linker")
    return original(kvcache, *args, **kwargs)
