# SPDX-License-Identifier: Apache-2.0
"""Two servers whose storage is exchanged while they run: a start takes longer than a case."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from demo.hint import fetch_hint, has_native_field, page_hashes
from demo.prompt import Tokens

from kvstrata_host.ports import free_ports
from kvstrata_host.server import Generation, Progress, Server, ServerError
from kvstrata_host.spec import Json, ServerSpec

from .case import Case
from .workload import CONCURRENT, NEW_TOKENS, Burst, Workload, send

PAGE_TOKENS = 16
_KEY = "bench"
_BACKED_UP = "sglang:backuped_tokens_total"
_DRAM_BYTES = 512 << 20


class ServingError(RuntimeError):
    """A case did not do what it stands for, so its times would mean nothing."""


class Pair:
    """A, which can be a source, and B, which is measured."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        longest: Workload,
        start_timeout_s: float,
        progress: Progress,
    ) -> None:
        self._folder = folder
        self._ports = {name: free_ports(2) for name in "AB"}
        tokens = longest.prefix_tokens + longest.end_tokens + NEW_TOKENS + PAGE_TOKENS
        self._servers = {
            name: Server(
                ServerSpec(
                    name=name,
                    model=model,
                    log=folder / f"server-{name.lower()}.log",
                    page_size_tokens=PAGE_TOKENS,
                    context_tokens=tokens,
                    max_total_tokens=(longest.groups + CONCURRENT) * tokens,
                    admin_key=_KEY,
                    extra_env={"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(folder / name)},
                ),
                start_timeout_s=start_timeout_s,
                progress=progress,
            )
            for name in "AB"
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Both servers, in the block."""
        with ExitStack() as started:
            for server in self._servers.values():
                started.callback(server.kill)
            with ThreadPoolExecutor(2) as pool:
                for starting in [pool.submit(each.start) for each in self._servers.values()]:
                    starting.result()
            yield

    @contextmanager
    def storing(self, case: Case) -> Iterator[None]:
        """The storage of a case, in the block; empty at the start."""
        names = {"nothing": "", "own": "B", "peer": "AB"}[case.source]
        try:
            for name in names:
                self._servers[name].attach(case.storage, self._settings(name, case))
            yield
        finally:
            for name in names:
                self._servers[name].flush(timeout_s=60.0)
                self._servers[name].detach()

    def measure(self, case: Case, workload: Workload, name: str) -> Burst:
        """Send a workload to B with its prefixes where the case has them.

        Raises ServingError unless each prefix came from storage exactly once, or not at all where
        there is none; and ServerError.
        """
        a, b = self._servers["A"], self._servers["B"]
        prefixes = workload.prefixes(name)
        holder = {"nothing": None, "own": b, "peer": a}[case.source]
        if holder is not None:
            self._compute(holder, prefixes)
        b.flush(timeout_s=60.0)
        hints = {p: self._hint(p) for p in prefixes} if case.source == "peer" else {}

        def ask(prefix: Tokens, prompt: Tokens) -> Generation:
            hint = hints.get(prefix)
            native = has_native_field()
            return b.generate(
                prompt,
                max_new_tokens=NEW_TOKENS,
                logprobs=False,
                kv_hints=hint if native else None,
                custom_params=None if native or hint is None else {"kv_hints": json.dumps(hint)},
            )

        burst = send(ask, workload.prompts(prefixes))
        wanted = 0 if holder is None else workload.groups * workload.prefix_tokens
        if burst.restored_tokens != wanted:
            raise ServingError(
                f"{case.name}: {burst.restored_tokens} tokens came from storage, not {wanted}"
            )
        return burst

    def _compute(self, server: Server, prefixes: Sequence[Tokens]) -> None:
        """Let a server compute and store prefixes."""
        before = server.metrics().get(_BACKED_UP, 0.0)
        for prefix in prefixes:
            server.generate(prefix, max_new_tokens=1, logprobs=False)
        wanted = before + sum(map(len, prefixes))
        deadline = time.monotonic() + 60.0
        while server.metrics().get(_BACKED_UP, 0.0) < wanted:
            if time.monotonic() > deadline:
                raise ServerError(server.spec.name, "pages were not backed up", server.spec.log)
            time.sleep(0.05)

    def _hint(self, prefix: Tokens) -> Mapping[str, Json]:
        control_port, _ = self._ports["A"]
        hashes = page_hashes(prefix, page_size_tokens=PAGE_TOKENS)
        return fetch_hint(f"tcp://127.0.0.1:{control_port}", hashes)

    def _settings(self, name: str, case: Case) -> dict[str, Json]:
        if case.storage != "kvcr":
            return {}
        control_port, nixl_port = self._ports[name]
        settings: dict[str, Json] = {
            "dram_bytes": _DRAM_BYTES,
            "bind_host": "127.0.0.1",
            "control_port": control_port,
            "nixl_port": nixl_port,
            "trust_request_hints": True,
        }
        return settings | ({"tuning": dict(case.tuning)} if case.tuning else {})
