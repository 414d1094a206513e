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
_DECODE = "sglang.srt.disaggregation.decode_hicache_mixin.DecodeHiCachePreallocMixin"
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_ATTACHMENT = "sglang.srt.mem_cache.unified_cache.storage_attachment.StorageAttachment"
_HYBRID = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.HybridCacheController"
_OPERATION = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller.PrefetchOperation"
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
            pins={
                "0.5.20": Pin(f"{_FACTORY}._create_builtin_backend", "ca6ac076ff2ac46d"),
                "0.5.21": Pin(f"{_FACTORY}._create_builtin_backend", "e5822aa29fbc58de"),
            },
        ),
        Hook(
            kind=Kind.BEFORE,
            function=hooks.start_storage,
            why="Zero-copy IO is for a list of names; no backend learns which pool is its last.",
            pins={
                "0.5.20": Pin(f"{_CONTROLLER}._start_storage_threads", "9e2d1b9e9682af6e"),
                "0.5.21": Pin(f"{_CONTROLLER}._start_storage_threads", "9e2d1b9e9682af6e"),
            },
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.carry_hint_of_request,
            why="A request's hint does not reach the prefetch of its prefix.",
            pins={
                "0.5.20": Pin(f"{_SCHEDULER}._prefetch_kvcache", "b0806226935c6958"),
                "0.5.21": Pin(f"{_SCHEDULER}._prefetch_kvcache", "a9a485af4c4a9708"),
            },
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.carry_hint_of_request,
            why="A request's hint does not reach a decode server's question for its prefix.",
            pins={
                "0.5.20": Pin(f"{_DECODE}._build_decode_prefix_match", "8e00793f84f20dec"),
                "0.5.21": Pin(f"{_DECODE}._build_decode_prefix_match", "8e00793f84f20dec"),
            },
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.carry_hint_of_request,
            why="A request's hint does not reach a decode server's prefetch of its prefix.",
            pins={
                "0.5.20": Pin(f"{_DECODE}._start_hicache_prefetch", "1595f43daf288530"),
                "0.5.21": Pin(f"{_DECODE}._start_hicache_prefetch", "1595f43daf288530"),
            },
        ),
        Hook(
            kind=Kind.AFTER,
            function=hooks.keep_hint_on_operation,
            why="A prefetch operation has no place for a hint.",
            pins={
                "0.5.20": Pin(f"{_OPERATION}.__init__", "68c45274805951fc"),
                "0.5.21": Pin(f"{_OPERATION}.__init__", "68c45274805951fc"),
            },
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.agree_on_hits,
            why="Ranks agree on the shortest hit, which may be illegal; a fault ends the thread.",
            pins={
                "0.5.20": Pin(f"{_CONTROLLER}.prefetch_thread_func", "be43978888eb374a"),
                "0.5.21": Pin(f"{_CONTROLLER}.prefetch_thread_func", "be43978888eb374a"),
            },
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.probe_storage,
            why="A decode server asks for KV alone, which says nothing of the other pools.",
            pins={
                "0.5.20": Pin(f"{_TREE}.query_storage_hit_length", "423082086a311657"),
                "0.5.21": Pin(f"{_TREE}.query_storage_hit_length", "423082086a311657"),
            },
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.read_pages,
            why="Reads are not told of the hint; a fault or a wrong result loses acknowledgements.",
            pins={
                "0.5.20": Pin(f"{_HYBRID}._page_transfer", "fc145a8b7f956bfe"),
                "0.5.21": Pin(f"{_HYBRID}._page_transfer_with_stable_layout", "e1ec80092671d540"),
            },
        ),
        Hook(
            kind=Kind.AROUND,
            function=hooks.back_up_pages,
            why="A backup counts pages whose sidecars failed, and a fault ends the thread.",
            pins={
                "0.5.20": Pin(f"{_HYBRID}._page_backup", "535db535da557c9a"),
                "0.5.21": Pin(f"{_HYBRID}._page_backup_with_stable_layout", "6cb14720468922bd"),
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
