# SPDX-License-Identifier: Apache-2.0
"""kvcr as a pull request to SGLang: a backend among the others, chosen by its name."""

from stackkit.export import (
    END,
    START,
    AddBranch,
    AddElement,
    AddImport,
    AddParameter,
    Assigns,
    Calls,
    DropArgument,
    Edit,
    File,
    Imports,
    Insert,
    Layer,
    Names,
    PassArgument,
    Remove,
    Tests,
    after,
    before,
    folder,
    instead,
)
from stackkit.export.readme import readme
from stackkit.export.sglang import STYLE, registered

PACKAGE = "sglang.srt.mem_cache.storage.kvcr"
HELPERS = "sglang.test.kvcr"
CHECKS = "kvcr_on_host"

SRT = "python/sglang/srt"
HOME = f"{SRT}/mem_cache/storage/kvcr"
STORE = f"{HOME}/store.py"
AGREEMENT = f"{HOME}/agreement.py"
CONTROLLER = f"{SRT}/managers/cache_controller.py"
HYBRID = f"{SRT}/mem_cache/hybrid_cache/hybrid_cache_controller.py"
FACTORY = f"{SRT}/mem_cache/storage/backend_factory.py"
TREE = f"{SRT}/mem_cache/unified_radix_cache.py"
OLD_TREE = f"{SRT}/mem_cache/hiradix_cache.py"
DECODE = f"{SRT}/disaggregation/decode_hicache_mixin.py"
SCHEDULER = f"{SRT}/managers/scheduler.py"
REQUEST = f"{SRT}/managers/schedule_batch.py"
ATTACHMENT = f"{SRT}/mem_cache/unified_cache/storage_attachment.py"
CHOICES = f"{SRT}/arg_groups/fields/memory.py"

HINT = "kv_hint: Optional[RequestHint] = None"
HINTS = f"{PACKAGE}.hints"

CHOICE: tuple[Edit, ...] = (
    AddElement(CHOICES, "Memory.hicache_storage_backend", '"shm"', '"kvcr"'),
    AddBranch(
        FACTORY,
        "StorageBackendFactory._create_builtin_backend",
        'backend_name == "shm"',
        'backend_name == "kvcr"',
        "return backend_class(storage_config, get_model().model_path)",
    ),
    AddImport(FACTORY, "", "sglang.srt.runtime_context", "get_model"),
    Insert(
        FACTORY,
        "",
        END,
        f'StorageBackendFactory.register_backend("kvcr", "{PACKAGE}.store", "KvcrStore")',
        spaced=True,
    ),
    Insert(
        STORE,
        "KvcrStore.__init__",
        START,
        """
        check_dependencies()
        check_page_hash()
        """,
    ),
    AddImport(STORE, "", f"{PACKAGE}.preflight", "check_dependencies"),
    AddImport(STORE, "", f"{PACKAGE}.preflight", "check_page_hash"),
)

ATTACHING: tuple[Edit, ...] = (
    Insert(
        CONTROLLER,
        "HiCacheController.attach_storage_backend",
        after(Assigns("self.backup_skip")),
        """
        if storage_backend == "kvcr":
            # Each rank restores from its own DRAM, so each keeps a copy of its own.
            self.backup_skip = False
        """,
    ),
    AddElement(CONTROLLER, "HiCacheController.attach_storage_backend", '"mori"', '"kvcr"'),
    Insert(
        CONTROLLER,
        "HiCacheController.attach_storage_backend",
        before(Calls("self.storage_stop_event.clear")),
        f"""
        if self.storage_backend_type == "kvcr":
            from {PACKAGE}.agreement import check_alike

            # Comes first: what fails on one rank alone would leave the others waiting.
            check_alike(self)
            # It starts on all pools at once, here, where a refusal undoes the attachment.
            for entry in getattr(self.mem_pool_host, "entries", ()):
                self.storage_backend.register_mem_host_pool_v2(entry.host_pool, entry.name)
            self.storage_backend.start()
        """,
        spaced=True,
    ),
    Insert(
        ATTACHMENT,
        "StorageAttachment.apply_runtime_config",
        END,
        f"""
        if storage_backend == "kvcr":
            from {PACKAGE}.losses import warn

            # Only here are the prefetch policy, its deadline and the pools known together.
            store = cache.cache_controller.storage_backend
            warn(cache, store.operation_timeout_seconds)
            store.ways.attached(cache)
        """,
        spaced=True,
    ),
)

PAGES: tuple[Edit, ...] = (
    Insert(
        CONTROLLER,
        "HiCacheController.prefetch_thread_func",
        START,
        f"""
        if self.storage_backend_type == "kvcr":
            from {PACKAGE}.agreement import answer_queries

            # Ranks agree on a boundary that each of them may resume at.
            answer_queries(self)
            return
        """,
        spaced=True,
    ),
    Insert(
        HYBRID,
        "HybridCacheController._page_transfer",
        START,
        f"""
        if self.storage_backend_type == "kvcr":
            from {PACKAGE}.transfers import read

            read(self, operation)
            return
        """,
        spaced=True,
    ),
    Insert(
        HYBRID,
        "HybridCacheController._page_backup",
        START,
        f"""
        if self.storage_backend_type == "kvcr":
            from {PACKAGE}.transfers import back_up

            back_up(self, operation)
            return
        """,
        spaced=True,
    ),
)

HINTED: tuple[Edit, ...] = (
    Insert(
        REQUEST,
        "Req.__init__",
        after(Assigns("self.cache_request_handle")),
        """
        # Where the prefix may be restored from; see mem_cache/storage/kvcr.
        self.kv_hint: Optional[RequestHint] = None
        """,
    ),
    AddImport(REQUEST, "", HINTS, "RequestHint", for_types=True),
    PassArgument(
        SCHEDULER,
        "Scheduler._prefetch_kvcache",
        "tree_cache.prefetch_from_storage",
        "kv_hint=request_hint(req)",
    ),
    AddImport(SCHEDULER, "", HINTS, "request_hint"),
    PassArgument(
        DECODE,
        "DecodeHiCachePreallocMixin._build_decode_prefix_match",
        "self.tree_cache.query_storage_hit_length",
        "kv_hint=request_hint(req)",
    ),
    PassArgument(
        DECODE,
        "DecodeHiCachePreallocMixin._start_hicache_prefetch",
        "self.tree_cache.prefetch_from_storage",
        "kv_hint=request_hint(req)",
    ),
    AddImport(DECODE, "", HINTS, "request_hint"),
    AddParameter(TREE, "UnifiedRadixCache.prefetch_from_storage", HINT),
    PassArgument(
        TREE,
        "UnifiedRadixCache.prefetch_from_storage",
        "self.cache_controller.prefetch",
        "kv_hint=kv_hint",
    ),
    AddParameter(TREE, "UnifiedRadixCache.query_storage_hit_length", HINT),
    Insert(
        TREE,
        "UnifiedRadixCache.query_storage_hit_length",
        before(Assigns("prefetch_key")),
        f"""
        if self.cache_controller.storage_backend_type == "kvcr":
            from {PACKAGE}.agreement import probe

            # The answer covers the pools beside KV, as the prefetch will.
            return probe(
                self,
                last_host_node_id,
                new_input_tokens,
                last_hash,
                prefix_keys,
                extra_key,
                cache_salt,
                kv_hint,
            )
        """,
        spaced=True,
    ),
    AddImport(TREE, "", HINTS, "RequestHint", for_types=True),
    AddParameter(OLD_TREE, "HiRadixCache.prefetch_from_storage", HINT),
    AddParameter(OLD_TREE, "HiRadixCache.query_storage_hit_length", HINT),
    AddImport(OLD_TREE, "", HINTS, "RequestHint", for_types=True),
    AddParameter(HYBRID, "HybridCacheController.prefetch", HINT),
    PassArgument(HYBRID, "HybridCacheController.prefetch", "PrefetchOperation", "kv_hint=kv_hint"),
    AddParameter(HYBRID, "PrefetchOperation.__init__", HINT),
    Insert(
        HYBRID,
        "PrefetchOperation.__init__",
        after(Assigns("self.assume_stored")),
        "self.kv_hint = kv_hint",
    ),
    AddImport(HYBRID, "", HINTS, "RequestHint", for_types=True),
    AddParameter(AGREEMENT, "probe", "kv_hint: RequestHint | None = None"),
    PassArgument(AGREEMENT, "probe", "PrefetchOperation", "kv_hint=kv_hint"),
    AddImport(AGREEMENT, "", HINTS, "RequestHint"),
)

HELPED: tuple[Edit, ...] = (
    DropArgument("python/sglang/test/kvcr/runners.py", "Peer.start", "subprocess.Popen", "cwd"),
)

WITHOUT_NIXL_THREAD: tuple[Edit, ...] = (
    Remove(STORE, "KvcrStore.__init__", Tests("not self._config.nixl_progress_thread")),
    Remove(f"{HOME}/config.py", "KvcrConfig.nixl_progress_thread"),
)

# What these did by hooks, the tree does by itself.
WITHOUT_HOOKS: tuple[Edit, ...] = (
    Remove(f"{CHECKS}/trees.py", "TreeRank.attach.load", Calls("activate")),
    Remove(f"{CHECKS}/trees.py", "", Imports(f"{PACKAGE}.activation")),
    Remove(f"{CHECKS}/trees.py", "", Imports(f"{PACKAGE}.plugin")),
    Remove("tests/test_losses.py", "test_another_backend_is_not_warned_of"),
    Remove("tests/test_losses.py", "", Imports(PACKAGE)),
    Remove("tests/test_transfers.py", "", Imports(PACKAGE)),
    Remove(
        "tests/test_transfers.py",
        "test_every_rank_backs_up_its_own_copy_of_replicated_kv",
    ),
    # The hint that hooks would take from the thread is an argument.
    Insert(
        "tests/test_store.py",
        "Replica",
        END,
        """
        def restore(self, tokens: list[int]) -> tuple[int, list[torch.Tensor]]:
            prefetch = partial(self.controller.prefetch, kv_hint=carried())
            with mock.patch.object(self.controller, "prefetch", prefetch):
                return super().restore(tokens)
        """,
        spaced=True,
    ),
    AddImport("tests/test_store.py", "", HINTS, "carried"),
    AddImport("tests/test_store.py", "", "functools", "partial"),
    AddImport("tests/test_store.py", "", "unittest", "mock"),
)

FRONT = instead(
    {
        """

Nothing here imports SGLang, KVCR or NIXL: the package is importable where they are missing.
""": ""
    }
)

OPTIONS = {
    "Options of sglang-kvcr-tuning, which has to be installed for them.": (
        "Options of an extension; refused where there is none."
    )
}

# A package registers what reads the options. In the tree they are refused until a reader is there.
EXTENSION = instead(
    {
        "What another package may change": "What an extension may change",
        """An extension registers itself in its plugin's ``load()``, under the setting ``tuning``. \
Without that
setting a store""": "Without the setting ``tuning`` a store",
        """# A plugin that registers an extension is loaded where nothing of this may be used.
""": "",
        """PACKAGE = "sglang-kvcr-tuning"
\"\"\"The distribution that reads the setting ``tuning``.\"\"\"

PLUGIN = "kvstrata_kvcr_tuning"
\"\"\"Its name among SGLang's plugins.\"\"\"

""": "",
        """class Make(Protocol):
    \"\"\"How an extension is made from the setting ``tuning``.\"\"\"

    def __call__(
        self, options: Mapping[str, object], surroundings: Surroundings, inner: Extension
    ) -> Extension:
        \"\"\"An extension that does in the ways of `inner` whatever no option changes.

        Returns `inner` itself if none does. Raises ConfigError for options that are wrong or do not
        fit the surroundings.
        \"\"\"


_registered: list[Make] = []


def register(make: Make) -> None:
    \"\"\"Offer what reads the setting ``tuning``; a later offer replaces an earlier one.\"\"\"
    _registered[:] = [make]


""": "",
        """    if not options:
        return inner
    if not _registered:
        fix = f"Run: pip install {PACKAGE}"
        if allowed := os.environ.get("SGLANG_PLUGINS"):
            fix += f", and add {PLUGIN} to SGLANG_PLUGINS, which is {allowed!r}"
        raise ConfigError("tuning", options, f"nothing, unless {PACKAGE} is installed", f"{fix}.")
    return _registered[0](options, surroundings, inner)
""": """    if not options:
        return inner
    raise ConfigError("tuning", options, "nothing", "Remove tuning from the extra config.")
""",
    }
)

TOP = """
# KVCR as a storage backend of HiCache

A prefix that one server computed is restored by another, from the DRAM of either, over NIXL and
UCX. `pip install kvcr==0.1.1 nixl==1.5.0` and start each server with

    --hicache-storage-backend kvcr --hicache-mem-layout page_first

A restore from a peer follows a hint of the request, which Dynamo's router and others write: the
`kv.fetch` action 1.0 of the KV hint protocol 0.1, as JSON text in
`sampling_params.custom_params["kv_hints"]`. It needs `"trust_request_hints": true`.
"""

LAYER = Layer(
    subject="[HiCache] Add KVCR as a storage backend",
    body="""
--hicache-storage-backend kvcr keeps pages in DRAM that each rank owns and lends to KVCR. A request
may name a peer that has its prefix; the pages are then read from there over NIXL. Whatever cannot
be restored is a miss.

All ranks agree on a prefix that each of them may resume at, in every pool, before anything is read,
and all emit the same acknowledgements whatever fails on one of them.
""",
    names=Names(
        modules={
            "kvstrata.kvcr": PACKAGE,
            "tests.memory": f"{HELPERS}.memory",
            "tests.runners": f"{HELPERS}.runners",
            "tests.peer": f"{HELPERS}.peer",
            "kvstrata_host.ports": f"{HELPERS}.ports",
            "kvstrata_host.kvcr": CHECKS,
        },
        words={"kvstrata_kvcr_hint": "kv_hint", "kvstrata": "sglang"},
    ),
    style=STYLE,
    files=(
        *folder(
            "src/kvstrata/kvcr",
            HOME,
            "agreement.py batch.py boundaries.py contract.py dram.py "
            "endpoints.py errors.py hints.py identity.py instance.py keys.py layout.py losses.py "
            "metrics.py peers.py pools.py preflight.py rate_limit.py runner.py session.py "
            "staging.py store.py topology.py transfers.py worker.py",
        ),
        File("src/kvstrata/kvcr/__init__.py", f"{HOME}/__init__.py", (FRONT,)),
        File("src/kvstrata/kvcr/config.py", f"{HOME}/config.py", (instead(OPTIONS),)),
        File("src/kvstrata/kvcr/extension.py", f"{HOME}/extension.py", (EXTENSION,)),
        File(
            "README.md",
            f"{HOME}/README.md",
            (
                readme(
                    TOP,
                    (
                        "Settings",
                        "Ownership of memory",
                        "Sizing",
                        "What happens when",
                        "Metrics",
                        "Security",
                        "Limits",
                    ),
                    without=("| `nixl_progress_thread`",),
                    instead=OPTIONS,
                ),
            ),
        ),
        *folder("tests", "python/sglang/test/kvcr", "memory.py peer.py runners.py"),
        File("/ci/host/src/kvstrata_host/ports.py", "python/sglang/test/kvcr/ports.py"),
        File("tests/conftest.py", "test/registered/unit/mem_cache/storage/kvcr/conftest.py"),
        *folder(
            "tests",
            "test/registered/unit/mem_cache/storage/kvcr",
            "test_boundaries.py test_config.py test_dram.py test_endpoints.py test_hints.py "
            "test_keys.py test_memory.py test_metrics.py test_peers.py test_pools.py "
            "test_preflight.py",
            registered(10),
        ),
    ),
    edits=(*CHOICE, *ATTACHING, *PAGES, *HINTED, *HELPED, *WITHOUT_NIXL_THREAD),
    left_out={
        "activation.py, hooks.py, plugin.py": "the edits stand in their place",
        "nixl_thread.py": "changes KVCR, which SGLang does not patch; KVCR has to offer it",
        "__main__.py, doctor.py, loopback.py, settings.py, transports.py": "tools for operators",
    },
    tested_elsewhere={
        "test_plugin.py, test_doctor.py, test_settings.py, test_shelf.py": "of what is left out",
        "test_extension.py": "of how a package registers itself; test_tree.py has the rest",
        "test_runner.py, test_staging.py, test_host_bytes.py, test_identity.py, test_layout.py": (
            "of modules that are the same here; each peer would import all of SGLang"
        ),
    },
    helpers=(
        *folder(
            "/ci/host/src/kvstrata_host/kvcr", CHECKS, "__init__.py replica.py shelf.py trees.py"
        ),
        *folder(
            "tests",
            "tests",
            "test_agreement.py test_losses.py test_request_hints.py "
            "test_server.py test_store.py test_transfers.py",
        ),
        File("upstream/test_tree.py", "tests/test_tree.py"),
    ),
    checks=WITHOUT_HOOKS,
)
