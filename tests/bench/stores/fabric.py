# SPDX-License-Identifier: Apache-2.0
"""The transports below: a write of NIXL's own, and UCX from its Python binding."""

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
from hicache import HostMemory

from .side import Address, MoveError, Side

_POLL_SECONDS = 0.00005


class NixlWrite(Side):
    """One agent on each side; the source writes all pages into the target's memory at once."""

    idle_seconds = 0.001

    def __init__(
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, object]
    ) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        super().__init__(memory, most, peer, settings)
        self._name = "write-target" if peer else "write-source"
        config = nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent: Any = nixl_agent(self._name, config)
        buffer = memory.pool.kv_buffer
        region = (buffer.data_ptr(), buffer.numel() * buffer.element_size(), 0, "")
        self._registered = self._agent.register_memory([region], "DRAM")
        self._theirs: list[tuple[int, int, int]] = []

    def address(self) -> Address:
        return {
            "metadata": self._agent.get_agent_metadata(),
            "blocks": self._blocks(self.most, self.most),
        }

    def meet(self, target: Address) -> None:
        self._agent.add_remote_agent(target["metadata"])
        self._theirs = list(target["blocks"])  # type: ignore[call-overload]

    def get(self, keys: Sequence[str]) -> None:
        own = self._agent.get_xfer_descs(self._blocks(0, len(keys)), "DRAM")
        theirs = self._agent.get_xfer_descs(self._theirs[: 2 * len(keys)], "DRAM")
        request = self._agent.initialize_xfer("WRITE", own, theirs, "write-target")
        state = self._agent.transfer(request)
        while state not in {"DONE", "ERR"}:
            time.sleep(_POLL_SECONDS)
            state = self._agent.check_xfer_state(request)
        self._agent.release_xfer_handle(request)
        if state != "DONE":
            raise MoveError(f"the write of {len(keys)} pages ended as {state}")

    def idle(self) -> None:
        self._agent.get_new_notifs()

    def close(self) -> None:
        self._agent.deregister_memory(self._registered)

    def _blocks(self, first: int, pages: int) -> list[tuple[int, int, int]]:
        return [(address, size, 0) for address, size in self.memory.blocks(first, pages)]


class Ucx(Side):
    """ucxx: the target asks for a number of pages, the source sends each of their parts."""

    def __init__(
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, object]
    ) -> None:
        super().__init__(memory, most, peer, settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener: Any = None
        self._endpoint: Any = None
        self._port = 0
        self._run(self._connect() if peer else self._listen()).result(30)

    def address(self) -> Address:
        return {"port": self._port}

    def get(self, keys: Sequence[str]) -> None:
        self._run(self._pull(len(keys))).result(60)

    def close(self) -> None:
        self._run(self._hang_up()).result(30)

    def _run(self, work: Any) -> "Future[None]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _listen(self) -> None:
        import ucxx

        self._listener = ucxx.create_listener(self._serve)
        self._port = self._listener.port

    async def _connect(self) -> None:
        import ucxx

        self._endpoint = await ucxx.create_endpoint("127.0.0.1", int(str(self.peer["port"])))

    async def _serve(self, endpoint: Any) -> None:
        wanted = np.zeros(1, dtype=np.int64)
        while True:
            await endpoint.recv(wanted)
            if not wanted[0]:
                return
            parts = self._parts(0, int(wanted[0]))
            await asyncio.gather(*(endpoint.send(part) for part in parts))

    async def _pull(self, pages: int) -> None:
        await self._endpoint.send(np.array([pages], dtype=np.int64))
        parts = self._parts(self.most, pages)
        await asyncio.gather(*(self._endpoint.recv(part) for part in parts))

    async def _hang_up(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.send(np.zeros(1, dtype=np.int64))
            await self._endpoint.close()
        if self._listener is not None:
            self._listener.close()

    def _parts(self, first: int, pages: int) -> list[npt.NDArray[np.uint8]]:
        contents = self.memory.page_contents(first, pages).numpy()
        return [part for run in contents for part in run]
