# SPDX-License-Identifier: Apache-2.0
"""A runner under test and peers in processes of their own, over the real KVCR and NIXL."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kvstrata.kvcr.endpoints import Endpoint
from kvstrata.kvcr.hints import Hint
from kvstrata.kvcr.instance import RunnerAddress
from kvstrata.kvcr.peers import PeerProbe
from kvstrata.kvcr.runner import Blocks, Runner
from kvstrata_host.ports import free_ports

from .memory import PageMemory, deadlines, page_hash, pattern

PAGE_BYTES = 64 << 10
PAGES = 32
DRAM_PAGES = 8


def reached_at(name: str) -> RunnerAddress:
    return RunnerAddress(name, "127.0.0.1", "127.0.0.1", *free_ports(2))


class Peer:
    """A source with PAGES pages, in a process of its own."""

    def __init__(self) -> None:
        self._ports = free_ports(2)
        self.endpoint = Endpoint("127.0.0.1", self._ports[0])
        self.start()

    def start(self) -> None:
        arguments = [*self._ports, PAGE_BYTES, PAGES]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.peer", *map(str, arguments)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if "ready\n" not in iter(self._process.stdout.readline, ""):
            raise AssertionError("the peer did not start")

    def hint(self, pages: Sequence[int]) -> Hint:
        return Hint(self.endpoint, frozenset(map(page_hash, pages)))

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Target:
    """A runner under test with its host pages and what it said about ending the worker."""

    def __init__(self) -> None:
        self.memory = PageMemory(PAGE_BYTES, PAGES)
        self.ended: list[str] = []
        self.runner = Runner(
            reached_at("target"),
            self.memory.pools,
            DRAM_PAGES * PAGE_BYTES,
            deadlines(),
            PeerProbe(timeout_seconds=0.25).is_gone,
            self.ended.append,
        )

    def deposit(self, pages: Sequence[int]) -> list[bool]:
        for at, page in enumerate(pages):
            self.memory.fill(at, pattern(page, PAGE_BYTES))
        places = {page: at for at, page in enumerate(pages)}
        return self.runner.deposit(self.memory.blocks("target", places))

    def restore(
        self,
        pages: Sequence[int],
        hint: Hint | None = None,
        how: Callable[[Runner, Blocks, Hint | None], list[bool]] = Runner.deliver,
    ) -> list[bool]:
        """Restore into reversed places of cleared memory; checks every byte of every place."""
        self.memory.clear()
        places = {page: PAGES - 1 - at for at, page in enumerate(pages)}
        results = how(self.runner, self.memory.blocks("target", places), hint)
        for page, filled in zip(pages, results, strict=True):
            if filled:
                assert np.array_equal(self.memory.read(places[page]), pattern(page, PAGE_BYTES))
        untouched = set(range(PAGES)) - {
            places[p] for p, ok in zip(pages, results, strict=True) if ok
        }
        assert not any(self.memory.read(at).any() for at in untouched)
        return results


@contextmanager
def running(call: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=call)
    thread.start()
    yield thread
    thread.join(30)
    assert not thread.is_alive()
