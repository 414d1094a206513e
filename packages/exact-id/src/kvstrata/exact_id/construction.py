# SPDX-License-Identifier: Apache-2.0
"""Making a DeepSeek-V4 pool: who owns what is decided first, and managed pools never get buffers
of SGLang's."""

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from sglang.kernels.ops.attention.dsv4.unified_kv_kernels.env_gate import is_unified_kv_triton
from sglang.srt.mem_cache.deepseek_v4_memory_pool import (
    DeepSeekV4SingleKVPool,
    DeepSeekV4TokenToKVPool,
)
from sglang.srt.runtime_context import get_disagg, get_exec, get_memory, get_parallel
from sglang.srt.utils import is_hip

from .accounting import RESERVATIONS, native_bytes
from .backing import start_kvcached
from .discovery import attach, selected_pools_of
from .gating import Circumstances, is_enabled, kvcached_version, native_reason
from .ownership import C4, C128, SWA, Ownership, claims, decide, layers_by_pool
from .rows import managed_rows
from .transaction import ManagedPools

_Value = TypeVar("_Value")

_log = logging.getLogger(__name__)

_POOL_OF_RATIO = {1: SWA, 4: C4, 128: C128}


def build(
    original: Callable[..., None],
    kvcache: DeepSeekV4TokenToKVPool,
    *args: object,
    **kwargs: object,
) -> None:
    """Make the pool; all its managed pools are ready afterwards, or this raises."""
    if not is_enabled(os.environ):
        original(kvcache, *args, **kwargs)
        return
    bound = inspect.signature(DeepSeekV4TokenToKVPool.__init__).bind(kvcache, *args, **kwargs)
    bound.apply_defaults()
    given: Mapping[str, object] = bound.arguments
    seen = observe(given)
    owners = decide(seen, layers_by_pool(_ratios(given)), claims())
    _tell(seen, owners)
    device = str(given["device"])
    pools = _selected(owners, device)
    attach(kvcache, owners, pools)
    if pools is None:
        original(kvcache, *args, **kwargs)
    else:
        try:
            original(kvcache, *args, **kwargs)
            pools.open()
        except BaseException as error:
            pools.barrier.fail(f"the pools could not be made: {error!r}")
            pools.close()
            raise
    prefix = "draft-" if seen.draft else ""
    for name, size_bytes in native_bytes(kvcache).items():
        RESERVATIONS.report(device, prefix + name, size_bytes)


def build_kv_pool(
    original: Callable[..., DeepSeekV4SingleKVPool],
    kvcache: DeepSeekV4TokenToKVPool,
    *,
    page_size: int,
    global_page_size: int,
    cls: type[DeepSeekV4SingleKVPool],
    **kwargs: object,
) -> DeepSeekV4SingleKVPool:
    """Make one pool of rows with a latent per token; a selected one on managed memory."""
    name = _POOL_OF_RATIO[global_page_size // page_size]
    pools = selected_pools_of(kvcache, name)
    if pools is not None:
        cls = _backed(cls, name, pools)
    return original(
        kvcache, page_size=page_size, global_page_size=global_page_size, cls=cls, **kwargs
    )


def observe(given: Mapping[str, object]) -> Circumstances:
    """What SGLang's configuration and the arguments of the pool say."""
    return Circumstances(
        tp_size=_published(lambda: get_parallel().tp_size),
        pp_size=_published(lambda: get_parallel().pp_size),
        kvcached_version=kvcached_version(),
        contiguous_layout=contiguous_layout(),
        device_type=torch.device(str(given["device"])).type,
        memory_saver=bool(given["enable_memory_saver"]),
        hierarchical_cache=bool(_published(lambda: get_memory().enable_hierarchical_cache)),
        external_linker=bool(_published(lambda: get_memory().enable_unified_cache_external_linker)),
        disaggregation=_published(lambda: get_disagg().disaggregation_mode) not in (None, "null"),
        draft=not any(_ratios(given)),
        unified_kv=is_unified_kv_triton(),
        hisparse=bool(given["enable_hisparse"]),
        aiter_fp4=is_hip()
        and bool(_published(lambda: get_exec().kernel.enable_deepseek_v4_fp4_indexer)),
    )


def contiguous_layout() -> bool | None:
    """The layout of kvcached in this process; None without kvcached."""
    try:
        from kvcached.utils import CONTIGUOUS_LAYOUT
    except ImportError:
        return None
    return bool(CONTIGUOUS_LAYOUT)


def _ratios(given: Mapping[str, object]) -> Sequence[int]:
    ratios = given["compression_ratios"]
    if not isinstance(ratios, list):
        raise TypeError(f"compression_ratios is {ratios!r}; SGLang gives a list")
    return ratios


def _published(read: Callable[[], _Value]) -> _Value | None:
    """A leaf of SGLang's configuration; None where it has not been published."""
    try:
        return read()
    except (AttributeError, RuntimeError, ValueError):
        return None


def _tell(seen: Circumstances, owners: Sequence[Ownership]) -> None:
    reason = native_reason(seen)
    if reason is not None:
        _log.warning("DeepSeek-V4 pools stay native: %s", reason)
        return
    for owner in owners:
        kind = "managed" if owner.is_managed else "native"
        _log.info("DeepSeek-V4 pool %s is %s: %s", owner.pool, kind, owner.why)


def _selected(owners: Sequence[Ownership], device: str) -> ManagedPools | None:
    """All managed pools of a model, declared before the first one is made; None without one."""
    managed = [owner.pool for owner in owners if owner.is_managed]
    if not managed:
        return None
    start_kvcached(device)
    pools = ManagedPools(device)
    for name in managed:
        pools.select(name, claims()[name].space)
    return pools


def _backed(
    cls: type[DeepSeekV4SingleKVPool], name: str, pools: ManagedPools
) -> type[DeepSeekV4SingleKVPool]:
    """`cls` with the memory of the managed pool `name`."""

    class Backed(cls):  # type: ignore[misc]
        def _create_buffers(self) -> None:
            # Sets the attributes of the layout and shows the row's size and type.
            row = self.create_buffer(num_pages=0)
            self.kv_buffer = managed_rows(
                self, name, pools, page_bytes=row.shape[1] * row.element_size(), dtype=row.dtype
            )

    Backed.__name__ = Backed.__qualname__ = f"Backed{cls.__name__}"
    return Backed
