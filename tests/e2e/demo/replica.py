# SPDX-License-Identifier: Apache-2.0
"""A replica: one SGLang server whose HiCache storage is KVCR."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import requests

from kvstrata_host.server import Progress, Server, ServerError
from kvstrata_host.spec import Json, ServerSpec

from .answer import Answer
from .hint import Hint, has_native_field
from .serverlog import Lines, ServerLog

PAGE_SIZE_TOKENS = 16

_LOOPBACK = "127.0.0.1"
_CLEAR = "/hicache/storage-backend/clear"


class Replica:
    """A server of the demo.

    Args:
        name: a letter.
        ports: of HTTP, of KVCR's control channel, of NIXL; the latter two of rank 0.
        ranks: tensor-parallel ranks, each with a KVCR of its own.
        model: folder of the model, the same for every replica.
        folder: where the log goes.
        tokens: the longest prompt with its answer.
        environment: variables over this process's own.
        settings: of the backend, over the demo's.
    """

    def __init__(
        self,
        name: str,
        *,
        ports: tuple[int, int, int],
        ranks: int,
        model: Path,
        folder: Path,
        tokens: int,
        start_timeout_s: float,
        progress: Progress,
        environment: Mapping[str, str],
        settings: Mapping[str, Json] | None = None,
    ) -> None:
        http_port, control_port, nixl_port = ports
        self.name = name
        self._ranks = frozenset(range(ranks))
        chosen: dict[str, Json] = {
            "dram_bytes": f"{1024 // ranks}MiB",
            "bind_host": _LOOPBACK,
            "control_port": control_port,
            "nixl_port": nixl_port,
            "trust_request_hints": True,
            "advertise_host": _LOOPBACK,
            **(settings or {}),
        }
        self.endpoint = f"tcp://{chosen['advertise_host']}:{control_port}"
        spec = ServerSpec(
            name=name,
            model=model,
            port=http_port,
            tp_size=ranks,
            log=folder / f"replica-{name.lower()}.log",
            page_size_tokens=PAGE_SIZE_TOKENS,
            context_tokens=tokens,
            max_total_tokens=4 * tokens,
            storage_backend="kvcr",
            extra_config=chosen,
            layout="page_first_direct",
            io_backend="direct",
            prefetch_policy="wait_complete",
            extra_env=environment,
        )
        self.server = Server(spec, start_timeout_s=start_timeout_s, progress=progress)
        self.log = ServerLog(spec.log)

    def ask(
        self,
        tokens: Sequence[int],
        *,
        new_tokens: int,
        hint: Hint | None = None,
        timeout_s: float = 300.0,
    ) -> Answer:
        """The greedy answer to a prompt, and what the backend did for it."""
        before = self.log.end()
        carried = None if hint is None or has_native_field() else {"kv_hints": json.dumps(hint)}
        generation = self.server.generate(
            tokens,
            max_new_tokens=new_tokens,
            custom_params=carried,
            kv_hints=hint if has_native_field() else None,
            timeout_s=timeout_s,
        )
        restores = self.log.since(before).restores()
        return Answer(generation, restores, PAGE_SIZE_TOKENS, len(self._ranks))

    def wait_for_backup(self, *, since: int, pages: int, timeout_s: float = 60.0) -> Lines:
        """Wait until every rank's KVCR holds this many pages more than at a position of the log."""

        def held(lines: Lines, rank: int) -> int:
            return sum(each.held for each in lines.backups() if each.rank == rank)

        return self._wait(
            since,
            lambda lines: all(held(lines, rank) >= pages for rank in self._ranks),
            f"{pages} pages were not backed up in {timeout_s:.0f} s",
            timeout_s,
        )

    def flush(self) -> None:
        """Empty the device and host pools."""
        self.server.flush(timeout_s=60.0)

    def clear_storage(self, *, timeout_s: float = 120.0) -> None:
        """Empty the storage, and wait until it is ready again."""
        before = self.log.end()
        answer = self._send("POST", _CLEAR, timeout_s)
        if not answer.ok:
            problem = f"{_CLEAR} answered {answer.status_code}: {answer.text.strip()}"
            raise ServerError(self.name, problem, self.log.path)
        self._wait(
            before,
            lambda lines: lines.started_backends() >= self._ranks,
            f"no storage {timeout_s:.0f} s after a clear",
            timeout_s,
        )

    def healthy(self) -> bool:
        """Whether the server still runs and answers its health check."""
        if not self.server.running:
            return False
        try:
            return self._send("GET", "/health", 20.0).ok
        except ServerError:
            return False

    def _send(self, method: str, path: str, timeout_s: float) -> requests.Response:
        try:
            with requests.Session() as session:
                session.trust_env = False  # a proxy has no business on loopback
                return session.request(method, f"{self.server.url}{path}", timeout=timeout_s)
        except requests.RequestException as error:
            raise ServerError(self.name, f"{path} failed ({error})", self.log.path) from error

    def _wait(
        self, since: int, done: Callable[[Lines], bool], problem: str, timeout_s: float
    ) -> Lines:
        deadline = time.monotonic() + timeout_s
        while not done(lines := self.log.since(since)):
            if not self.server.running:
                raise ServerError(self.name, "the server ended", self.log.path)
            if time.monotonic() > deadline:
                raise ServerError(self.name, problem, self.log.path)
            time.sleep(0.05)
        return lines
