# SPDX-License-Identifier: Apache-2.0
"""What is changed in SGLang while the backend is in use: a few lines per hook, no logic.

A request's hint travels by two steps. On the scheduler thread it goes from the request to the
prefetch operation; on the storage threads, from the operation to the store's calls.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import losses
from .config import BACKEND_NAME
from .hints import carried, carrying, hint_in

if TYPE_CHECKING:
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import PrefetchOperation
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
    from sglang.srt.mem_cache.unified_cache.storage_attachment import StorageAttachment

_OPERATION_HINT = "kvstrata_kvcr_hint"


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


def use_zero_copy(controller: "HiCacheController") -> None:
    """BEFORE the storage threads start: pages are read and written in place, by every rank."""
    if controller.storage_backend_type == BACKEND_NAME:
        controller.page_get_func = controller._page_get_zero_copy
        controller.page_set_func = controller._page_set_zero_copy
        # Each rank owns a KVCR of its own, so replicated KV is backed up by each of them too.
        controller.backup_skip = False


def take_hint_from_request(
    original: Callable[..., None],
    scheduler: "Scheduler",
    req: "Req",
    *args: object,
    **kwargs: object,
) -> None:
    """AROUND the scheduler's prefetch of a request."""
    with carrying(hint_in(req.sampling_params.custom_params)):
        original(scheduler, req, *args, **kwargs)


def keep_hint_on_operation(
    result: None, operation: "PrefetchOperation", *args: object, **kwargs: object
) -> None:
    """AFTER a prefetch operation is made."""
    setattr(operation, _OPERATION_HINT, carried())


def query_with_hint(
    original: Callable[..., tuple[list[str], int]],
    controller: "HiCacheController",
    operation: "PrefetchOperation",
) -> tuple[list[str], int]:
    """AROUND the storage query of an operation; parses the hint off the scheduler thread."""
    if controller.storage_backend_type != BACKEND_NAME:
        return original(controller, operation)
    hint = controller.storage_backend.accept_hint(getattr(operation, _OPERATION_HINT, None))
    setattr(operation, _OPERATION_HINT, hint)
    with carrying(hint):
        return original(controller, operation)


def read_with_hint(
    original: Callable[..., object],
    controller: "HiCacheController",
    operation: "PrefetchOperation",
) -> object:
    """AROUND the page reads of an operation."""
    with carrying(getattr(operation, _OPERATION_HINT, None)):
        return original(controller, operation)


def warn_of_losses(
    result: None, attachment: "StorageAttachment", *, storage_backend: str, **settings: object
) -> None:
    """AFTER the storage's settings reach the cache, at start and at a run-time attachment."""
    if storage_backend == BACKEND_NAME:
        cache = attachment._cache
        losses.warn(cache, cache.cache_controller.storage_backend.operation_timeout_seconds)
