# SPDX-License-Identifier: Apache-2.0
"""Entry point for SGLang: offers the backend, and switches it on when it is chosen.

Offering adds a name to two lists of SGLang and changes nothing else. The hooks are applied in the
scheduler process, when the operator's choice makes SGLang ask for the backend's class.
"""

from typing import TYPE_CHECKING, get_type_hints

from kvstrata.seams import Hook, Kind, Pin, Seams

from . import hooks
from .activation import activate
from .config import BACKEND_NAME
from .preflight import check_dependencies, check_page_hash

if TYPE_CHECKING:
    from .store import KvcrStore

_CONTROLLER = "sglang.srt.managers.cache_controller.HiCacheController"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_HYBRID = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"
_ATTACHMENT = "sglang.srt.mem_cache.unified_cache.storage_attachment.StorageAttachment"
_FACTORY = "sglang.srt.mem_cache.storage.backend_factory.StorageBackendFactory"

SEAMS = Seams(
    slice="kvstrata-kvcr",
    upstream="sglang",
    switch=f"--hicache-storage-backend {BACKEND_NAME}",
    hooks=(
        Hook(
            kind=Kind.AROUND,
            function=hooks.create_backend,
            why="The factory builds only the backends that it names itself.",
            pins={"0.5.20": Pin(f"{_FACTORY}._create_builtin_backend", "ca6ac076ff2ac46d")},
        ),
        Hook(
            kind=Kind.BEFORE,
            function=hooks.use_zero_copy,
            why="Zero-copy page IO is reserved for a list of backend names.",
            pins={"0.5.20": Pin(f"{_CONTROLLER}._start_storage_threads", "9e2d1b9e9682af6e")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.take_hint_from_request,
            why="A request's hint does not reach the prefetch of its prefix.",
            pins={"0.5.20": Pin(f"{_SCHEDULER}._prefetch_kvcache", "b0806226935c6958")},
        ),
        Hook(
            kind=Kind.AFTER,
            function=hooks.keep_hint_on_operation,
            why="A prefetch operation has no place for a hint.",
            pins={"0.5.20": Pin(f"{_HYBRID}.PrefetchOperation.__init__", "68c45274805951fc")},
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.query_with_hint,
            why="The storage query does not pass the operation's hint to the backend.",
            pins={
                "0.5.20": Pin(
                    f"{_HYBRID}.HybridCacheController._storage_hit_query", "546d6ab5656c24ee"
                )
            },
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.read_with_hint,
            why="Page reads do not pass the operation's hint to the backend.",
            pins={
                "0.5.20": Pin(f"{_HYBRID}.HybridCacheController._page_transfer", "fc145a8b7f956bfe")
            },
        ),
        Hook(
            kind=Kind.AFTER,
            function=hooks.warn_of_losses,
            why="Only here are the prefetch policy, its deadline and the pools known together.",
            pins={
                "0.5.20": Pin(f"{_ATTACHMENT}.apply_runtime_config", "9e35fd21443da3b6"),
                "0.5.21": Pin(f"{_ATTACHMENT}.apply_runtime_config", "9e35fd21443da3b6"),
            },
        ),
    ),
)


def load() -> None:
    """Offer ``kvcr`` as a HiCache storage backend."""
    from sglang.srt.arg_groups.arg_utils import Arg
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
    from sglang.srt.server_args import ServerArgs

    hint = get_type_hints(ServerArgs, include_extras=True)["hicache_storage_backend"]
    for argument in hint.__metadata__:
        if isinstance(argument, Arg) and BACKEND_NAME not in argument.choices:
            argument.choices.append(BACKEND_NAME)
    StorageBackendFactory.register_backend(BACKEND_NAME, "kvstrata.kvcr.store", "KvcrStore")
    StorageBackendFactory._registry[BACKEND_NAME]["loader"] = _switch_on


def _switch_on() -> "type[KvcrStore]":
    """Apply the hooks and return the backend's class; any miss refuses the backend."""
    check_dependencies()
    check_page_hash()
    activate(SEAMS)
    from .store import KvcrStore

    return KvcrStore
