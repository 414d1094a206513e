# SPDX-License-Identifier: Apache-2.0
"""A process for one end of a contender, so that no library disturbs another one's."""

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

_START_SECONDS = 120.0
_CALL_SECONDS = 90.0
_END_SECONDS = 5.0

# Forked from a process that has imported SGLang and started nothing: eight seconds less for each.
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = ["hicache", "stores.side"]


class WorkerError(RuntimeError):
    """A worker refused, failed, ended or did not answer in time."""


class Worker:
    """One `Side` in a process of its own; calls return what its methods return.

    Args:
        name: of the log file.
        side: `module:class` of the Side.
        settings: handed to it.
        variables: of the process's environment, set before any library is loaded.
        logs: folder of its output.
    """

    def __init__(
        self,
        name: str,
        side: str,
        settings: Mapping[str, object],
        variables: Mapping[str, str],
        logs: Path,
    ) -> None:
        _CONTEXT.set_forkserver_preload(_PRELOADED)
        self.name = name
        self.log = logs / f"{name.replace(' ', '-').replace(',', '')}.log"
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=_main, args=(theirs, side, settings, variables, self.log), daemon=True
        )
        self._process.start()
        theirs.close()

    def start(self, page_bytes: int, most: int, peer: Mapping[str, object]) -> Mapping[str, object]:
        """Make the Side on a new host pool; returns its address."""
        address = self._ask(_START_SECONDS, "start", page_bytes, most, peer)
        if not isinstance(address, Mapping):
            raise WorkerError(f"{self.name}: its address is {address!r}")
        return address

    def timed(self, method: str, keys: Sequence[str]) -> float:
        """Seconds of one call of `set`, `get` or `exists`; raises WorkerError if it failed."""
        seconds = self._ask(_CALL_SECONDS, "timed", method, keys)
        if not isinstance(seconds, float):
            raise WorkerError(f"{self.name}: {method} took {seconds!r}")
        return seconds

    def call(self, method: str, *arguments: object) -> object:
        """What a method of the Side returns."""
        return self._ask(_CALL_SECONDS, "call", method, *arguments)

    def stop(self) -> None:
        """Close the Side; the process stays and can start another."""
        self._ask(_CALL_SECONDS, "stop")

    def pause(self) -> None:
        """Take the process off the cores until `resume`; it may be done to one that has ended."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.pid is not None and self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def end(self) -> None:
        """End the process."""
        self.resume()
        with contextlib.suppress(OSError):
            self._connection.send(("end",))
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ask(self, timeout_seconds: float, *request: object) -> object:
        try:
            self._connection.send(request)
            if not self._connection.poll(timeout_seconds):
                raise WorkerError(
                    f"{self.name}: no answer to {request[:2]} for {timeout_seconds} s"
                )
            failed, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerError(f"{self.name}: its process ended; see {self.log}") from error
        if failed:
            raise WorkerError(f"{self.name}: {answer}")
        return answer


def load_side(name: str) -> type:
    """The class behind `module:class`."""
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, type):
        raise TypeError(f"{name} is not a class")
    return found


def _main(
    connection: Connection,
    side: str,
    settings: Mapping[str, object],
    variables: Mapping[str, str],
    log: Path,
) -> None:
    os.environ.update(variables)
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab", buffering=0) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    _Desk(connection, side, settings).serve()
    # Libraries that were never meant to meet may crash in their destructors.
    os._exit(0)


class _Desk:
    """Answers the requests of one `Worker`."""

    def __init__(self, connection: Connection, side: str, settings: Mapping[str, object]) -> None:
        from stores.side import Side

        self._connection = connection
        self._name = side
        self._settings = settings
        self._side: Side | None = None

    def serve(self) -> None:
        while True:
            side = self._side
            pause = None if side is None else side.idle_seconds
            if side is not None and pause is not None and not self._connection.poll(pause):
                side.idle()
                continue
            try:
                request = self._connection.recv()
            except EOFError:
                return
            if request[0] == "end":
                return
            try:
                self._connection.send((False, self._answer(*request)))
            except Exception as error:  # noqa: BLE001 - whatever a library raises is the answer
                traceback.print_exc()
                self._connection.send((True, f"{type(error).__name__}: {error}"))

    def _answer(self, request: str, *arguments: object) -> object:
        if request == "start":
            page_bytes, most, peer = arguments
            from hicache import host_memory

            memory = host_memory(page_bytes, 2 * most)  # type: ignore[operator, arg-type]
            self._side = load_side(self._name)(memory, most, peer, self._settings)
            return self._side.address()
        if self._side is None:
            raise RuntimeError(f"{request} before start")
        if request == "stop":
            side, self._side = self._side, None
            side.close()
            return None
        method = getattr(self._side, str(arguments[0]))
        if request == "call":
            return method(*arguments[1:])
        began = time.perf_counter()
        found = method(arguments[1])
        seconds = time.perf_counter() - began
        if arguments[0] == "exists" and found != len(arguments[1]):  # type: ignore[arg-type]
            raise RuntimeError(f"exists found {found} of {len(arguments[1])} pages")  # type: ignore[arg-type]
        return seconds
