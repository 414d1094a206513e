# SPDX-License-Identifier: Apache-2.0
"""What is changed in SGLang while the backend is in use: a few lines per hook, no logic.

A request's hint travels by two steps. On the scheduler thread it goes from the request to the
prefetch operation; on the storage threads, from the operation to the store's calls.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import losses
from .config import BACKEND_NAME
from .hints import carried, carrying, keep_hint, request_hint

if TYPE_CHECKING:
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import (
        HybridCacheController,
        PrefetchOperation,
        StorageOperation,
    )
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
    from sglang.srt.mem_cache.unified_cache.storage_attachment import StorageAttachment
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


def create_backend(
    original: Callable[..., "HiCacheStorage"],
    factory: type["StorageBackendFactory"],
    name: str,
    backend: type,
    storage_config: "HiCacheStorageConfig",
    host_pool: object,
) -> "HiCacheStorage":
    """AROUND the factory's chain of built-in names."""
    if name != BACKEND_NAME:
        return original(factory, name, backend, storage_config, host_pool)
    from sglang.srt.runtime_context import get_model

    return backend(storage_config, get_model().model_path)


def start_storage(controller: "HiCacheController") -> None:
    """BEFORE the storage threads start: KVCR starts on every pool; a refusal undoes the attachment.

    SGLang registers the pools beside KV only later, where a refusal would leave storage attached.
    """
    if controller.storage_backend_type != BACKEND_NAME:
        return
    from .agreement import check_alike

    check_alike(controller)
    controller.page_get_func = controller._page_get_zero_copy
    controller.page_set_func = controller._page_set_zero_copy
    # Each rank owns a KVCR of its own, so replicated KV is backed up by each of them too.
    controller.backup_skip = False
    for entry in getattr(controller.mem_pool_host, "entries", ()):
        controller.storage_backend.register_mem_host_pool_v2(entry.host_pool, entry.name)
    controller.storage_backend.start()


def carry_hint_of_request(
    original: Callable[..., object],
    owner: object,
    req: "Req",
    *args: object,
    **kwargs: object,
) -> object:
    """AROUND what the scheduler does about the stored prefix of a request."""
    with carrying(request_hint(req)):
        return original(owner, req, *args, **kwargs)


def keep_hint_on_operation(
    result: None, operation: "PrefetchOperation", *args: object, **kwargs: object
) -> None:
    """AFTER a prefetch operation is made."""
    keep_hint(operation, carried())


def agree_on_hits(original: Callable[..., None], controller: "HiCacheController") -> None:
    """AROUND the storage query thread."""
    if controller.storage_backend_type != BACKEND_NAME:
        original(controller)
        return
    from .agreement import answer_queries

    answer_queries(controller)


def probe_storage(
    original: Callable[..., int],
    tree: "UnifiedRadixCache",
    last_host_node_id: int,
    new_input_tokens: list[int],
    last_hash: str | None = None,
    prefix_keys: list[str] | None = None,
    extra_key: str | None = None,
    cache_salt: str | None = None,
) -> int:
    """AROUND a decode server's question for how much of a prompt is stored."""
    span = (last_host_node_id, new_input_tokens, last_hash, prefix_keys, extra_key, cache_salt)
    controller = tree.cache_controller
    if controller is None or controller.storage_backend_type != BACKEND_NAME:
        return original(tree, *span)
    from .agreement import probe

    return probe(tree, *span)


def read_pages(
    original: Callable[..., object],
    controller: "HybridCacheController",
    operation: "PrefetchOperation",
) -> None:
    """AROUND the page reads of an operation."""
    if controller.storage_backend_type != BACKEND_NAME:
        original(controller, operation)
        return
    from .transfers import read

    read(controller, operation)


def back_up_pages(
    original: Callable[..., object],
    controller: "HybridCacheController",
    operation: "StorageOperation",
) -> None:
    """AROUND the page writes of an operation."""
    if controller.storage_backend_type != BACKEND_NAME:
        original(controller, operation)
        return
    from .transfers import back_up

    back_up(controller, operation)


def warn_of_losses(
    result: None, attachment: "StorageAttachment", *, storage_backend: str, **settings: object
) -> None:
    """AFTER the storage's settings reach the cache, at start and at a run-time attachment."""
    if storage_backend == BACKEND_NAME:
        cache = attachment._cache
        store = cache.cache_controller.storage_backend
        losses.warn(cache, store.operation_timeout_seconds)
        store.ways.attached(cache)
