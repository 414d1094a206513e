# SPDX-License-Identifier: Apache-2.0
"""A real SGLang server as a process group of its own, with every wait bounded."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

import requests

from kvstrata_host.log import Milestones, decisive, tail
from kvstrata_host.ports import free_ports
from kvstrata_host.process_group import ProcessGroup
from kvstrata_host.spec import Json, ServerSpec

_LOOPBACK = "127.0.0.1"
_STORAGE = "/hicache/storage-backend"
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{.*\})? (?P<value>\S+)$")


class ServerError(RuntimeError):
    """A server did not do what was asked; `log` is its log file and `tail` the log's last lines."""

    def __init__(self, name: str, problem: str, log: Path) -> None:
        self.log = log
        self.tail = tail(log)
        lines = "".join(f"\n  {line}" for line in decisive(self.tail))
        super().__init__(f"server {name}: {problem}; log {log}{lines}")


class PortInUseError(ServerError):
    """The port that was asked for is taken; choose another, or 0 for a free one."""


class StartError(ServerError):
    """The server's process ended, or was not healthy in time."""


class RequestError(ServerError):
    """A request was refused, broke off or took too long."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """One answer. Cached tokens are SGLang's own counts of the prompt tokens it did not compute.

    `time_to_first_token_s` and `latency_s` are measured here, from sending the request.
    """

    output_ids: tuple[int, ...]
    output_logprobs: tuple[float, ...]
    prompt_tokens: int
    cached_tokens: int
    cached_device_tokens: int
    cached_host_tokens: int
    cached_storage_tokens: int
    time_to_first_token_s: float
    latency_s: float


class Progress(Protocol):
    """Told what a starting server is doing."""

    def __call__(self, name: str, message: str, *, elapsed_s: float) -> None: ...


def _silent(name: str, message: str, *, elapsed_s: float) -> None:
    return None


class Server:
    """A server that runs from `start` to `stop` or `kill`; as a context manager, in the block."""

    def __init__(
        self, spec: ServerSpec, *, start_timeout_s: float = 180.0, progress: Progress = _silent
    ) -> None:
        self.spec = spec
        self.port = spec.port
        self.start_timeout_s = start_timeout_s
        self._progress = progress
        self._group: ProcessGroup | None = None
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy has no business on loopback
        if spec.admin_key:
            self._session.headers["Authorization"] = f"Bearer {spec.admin_key}"

    @property
    def url(self) -> str:
        return f"http://{_LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The leader of the process group and the group's id, None unless started."""
        return None if self._group is None else self._group.pid

    @property
    def running(self) -> bool:
        return self._group is not None and self._group.exit_code is None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it is healthy.

        Raises PortInUseError before anything is started, StartError as soon as the process ends or
        when `start_timeout_s` has passed; then nothing is left running.
        """
        if self.running:
            raise ServerError(self.spec.name, f"already running as {self.pid}", self.spec.log)
        self.port = self._claim_port()
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log.open("wb") as log:
            self._group = ProcessGroup(
                self.spec.command(self.port),
                env=self.spec.environment(),
                cwd=self.spec.log.parent,  # `-m` imports from the working directory first
                log=log,
            )
        try:
            self._wait_until_healthy(self._group)
        except BaseException:
            self.kill()
            raise

    def generate(
        self,
        input_ids: Sequence[int],
        *,
        max_new_tokens: int,
        custom_params: Mapping[str, Json] | None = None,
        kv_hints: Mapping[str, Json] | None = None,
        logprobs: bool = True,
        timeout_s: float = 120.0,
    ) -> Generation:
        """Greedy continuation of the prompt; the end of a sequence does not end it.

        `kv_hints` is a field of a request since SGLang 0.5.21.

        Raises RequestError when the server refuses, breaks off, or `timeout_s` has passed.
        """
        sampling: dict[str, Json] = {
            "temperature": 0,
            "max_new_tokens": max_new_tokens,
            "ignore_eos": True,
        }
        if custom_params is not None:
            sampling["custom_params"] = dict(custom_params)
        body: dict[str, Json] = {
            "input_ids": list(input_ids),
            "sampling_params": sampling,
            "return_logprob": logprobs,
            "stream": True,
        }
        if kv_hints is not None:
            body["kv_hints"] = dict(kv_hints)
        began = time.monotonic()
        arrivals = [
            (time.monotonic() - began, event)
            for event in self._events("/generate", body, timeout_s)
        ]
        if not arrivals:
            raise self._request_error("/generate answered nothing")
        (first_s, _), (latency_s, answer) = arrivals[0], arrivals[-1]
        try:
            return _generation(answer, first_s, latency_s)
        except (KeyError, TypeError) as problem:
            raise self._request_error(f"/generate answered {answer!r} ({problem!r})") from problem

    def flush(self, *, timeout_s: float = 30.0) -> None:
        """Empty the device and host caches, not the storage; waits until the server is idle."""
        self._until_idle("POST", "/flush_cache", timeout_s)

    def attach(
        self, backend: str, extra_config: Mapping[str, Json], *, timeout_s: float = 120.0
    ) -> None:
        """Attach a storage backend; waits until the server is idle. Needs an `admin_key`."""
        body: dict[str, Json] = {
            "hicache_storage_backend": backend,
            "hicache_storage_backend_extra_config_json": json.dumps(dict(extra_config)),
            "hicache_storage_prefetch_policy": self.spec.prefetch_policy,
            "hicache_write_policy": "write_through",
        }
        self._until_idle("PUT", _STORAGE, timeout_s, body)

    def detach(self, *, timeout_s: float = 60.0) -> None:
        """Detach the storage backend; waits until the server is idle. Needs an `admin_key`."""
        self._until_idle("DELETE", _STORAGE, timeout_s)

    def metrics(self, *, timeout_s: float = 10.0) -> dict[str, float]:
        """The server's own metrics, each summed over its labels."""
        totals: dict[str, float] = {}
        with self._sent("GET", "/metrics", timeout_s) as response:
            if not response.ok:
                raise self._request_error(f"/metrics answered {response.status_code}")
            for line in response.text.splitlines():
                if sample := _SAMPLE.match(line):
                    name = sample["name"]
                    totals[name] = totals.get(name, 0.0) + float(sample["value"])
        return totals

    def pause(self) -> None:
        """Freeze the whole process group (SIGSTOP)."""
        if self._group is not None:
            self._group.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process group go on (SIGCONT)."""
        if self._group is not None:
            self._group.send(signal.SIGCONT)

    def kill(self) -> None:
        """End the whole process group at once (SIGKILL); does nothing if it is gone."""
        if self._group is not None:
            self._group.kill()

    def stop(self, *, timeout_s: float = 15.0) -> None:
        """Ask the server to end (SIGTERM), then kill what is left after `timeout_s`."""
        if self._group is not None:
            self._group.stop(timeout_s)

    def _claim_port(self) -> int:
        port = self.spec.port or free_ports(1)[0]
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_LOOPBACK, port))
            except OSError as error:
                raise PortInUseError(
                    self.spec.name,
                    f"port {port} cannot be used ({error.strerror}); "
                    "choose another, or 0 for a free one",
                    self.spec.log,
                ) from error
        return port

    def _wait_until_healthy(self, group: ProcessGroup) -> None:
        began = time.monotonic()
        milestones = Milestones(self.spec.log)
        healthy = False
        while not healthy:
            healthy = self._healthy()
            elapsed_s = time.monotonic() - began
            for message in milestones.new():
                self._progress(self.spec.name, message, elapsed_s=elapsed_s)
            if group.exit_code is not None:
                problem = f"ended with {group.exit_code} while starting"
                raise StartError(self.spec.name, problem, self.spec.log)
            if not healthy and elapsed_s > self.start_timeout_s:
                problem = f"not healthy after {self.start_timeout_s} s"
                raise StartError(self.spec.name, problem, self.spec.log)
            time.sleep(0.0 if healthy else 0.2)
        message = f"ready on port {self.port}"
        self._progress(self.spec.name, message, elapsed_s=time.monotonic() - began)

    def _healthy(self) -> bool:
        try:
            return self._session.get(f"{self.url}/health", timeout=5.0).status_code == 200
        except requests.RequestException:
            return False

    def _until_idle(
        self, method: str, path: str, timeout_s: float, body: Mapping[str, Json] | None = None
    ) -> None:
        """Send a request until it is no longer refused, as a busy server does."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._sent(method, path, _left_s(deadline), body) as response:
                if response.ok:
                    return
                refusal = response.text.strip()
            if time.monotonic() >= deadline:
                raise self._request_error(f"{path} refused for {timeout_s} s: {refusal}")
            time.sleep(0.1)

    @contextlib.contextmanager
    def _sent(
        self, method: str, path: str, timeout_s: float, body: Mapping[str, Json] | None = None
    ) -> Iterator[requests.Response]:
        try:
            with self._session.request(
                method, f"{self.url}{path}", json=body, timeout=timeout_s
            ) as response:
                yield response
        except requests.RequestException as error:
            raise self._request_error(f"{path} failed ({error})") from error

    def _events(
        self, path: str, body: dict[str, Json], timeout_s: float
    ) -> Iterator[dict[str, Json]]:
        """The JSON documents of an event stream; `timeout_s` bounds the whole of it."""
        deadline = time.monotonic() + timeout_s
        try:
            with self._session.post(
                f"{self.url}{path}", json=body, stream=True, timeout=timeout_s
            ) as response:
                if not response.ok:
                    text = response.text.strip()
                    raise self._request_error(f"{path} answered {response.status_code}: {text}")
                for line in response.iter_lines():
                    if time.monotonic() > deadline:
                        raise self._request_error(f"{path} took more than {timeout_s} s")
                    if line.startswith(b"data: {"):
                        yield json.loads(line.removeprefix(b"data: "))
        except requests.RequestException as error:
            raise self._request_error(f"{path} failed ({error})") from error

    def _request_error(self, problem: str) -> RequestError:
        return RequestError(self.spec.name, problem, self.spec.log)


def _left_s(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.1)


def _generation(answer: Mapping[str, Json], first_s: float, latency_s: float) -> Generation:
    ids, meta = answer["output_ids"], answer["meta_info"]
    if not isinstance(ids, list) or not isinstance(meta, dict):
        raise TypeError("output_ids or meta_info is missing")
    details = meta.get("cached_tokens_details") or {}
    scores = meta.get("output_token_logprobs") or []
    if not isinstance(details, dict) or not isinstance(scores, list):
        raise TypeError("cached_tokens_details or output_token_logprobs has another form")
    return Generation(
        output_ids=tuple(_number(token) for token in ids),
        output_logprobs=tuple(_score(entry) for entry in scores),
        prompt_tokens=_number(meta["prompt_tokens"]),
        cached_tokens=_number(meta["cached_tokens"]),
        cached_device_tokens=_number(details.get("device", 0)),
        cached_host_tokens=_number(details.get("host", 0)),
        cached_storage_tokens=_number(details.get("storage", 0)),
        time_to_first_token_s=first_s,
        latency_s=latency_s,
    )


def _number(value: Json) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, got {value!r}")
    return value


def _score(entry: Json) -> float:
    """The logprob of a (logprob, token id, text) entry; NaN where the server had no number."""
    if not isinstance(entry, list):
        raise TypeError(f"expected a logprob entry, got {entry!r}")
    value = entry[0]
    return float(value) if isinstance(value, int | float) else float("nan")
