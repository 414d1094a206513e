# SPDX-License-Identifier: Apache-2.0
"""SGLang's own storage backends, made by its factory and called as its controllers call them."""

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import requests
import torch
from hicache import HostMemory, storage_config
from sglang.srt.environ import envs
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

from kvstrata_host.ports import free_ports

from .side import Address, MoveError, Side, check_all

VERBS = ("libnl-3.so.200", "libnl-route-3.so.200", "libibverbs.so.1")
"""What mooncake links to, in the order in which they need one another."""

_MASTER_SECONDS = 20.0


class Backend(Side):
    """A zero-copy backend: the calls of the first version."""

    def __init__(
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, object]
    ) -> None:
        super().__init__(memory, most, peer, settings)
        self.store = self.made()

    def made(self) -> Any:
        """The backend on this memory, with `self.settings` as its extra config."""
        name = str(self.settings["backend"])
        store = StorageBackendFactory.create_backend(
            name, storage_config(self.extra_config()), self.memory.pool
        )
        store.register_mem_pool_host(self.memory.pool)
        return store

    def extra_config(self) -> Mapping[str, object]:
        return {}

    def set(self, keys: Sequence[str]) -> None:
        check_all(self.store.batch_set_v1(keys, self.memory.indices(0, len(keys))), "set")

    def get(self, keys: Sequence[str]) -> None:
        indices = self.memory.indices(self.most, len(keys))
        check_all(self.store.batch_get_v1(keys, indices), "get")

    def exists(self, keys: Sequence[str]) -> int:
        return int(self.store.batch_exists(keys))


class _OnDisk(Backend):
    """A backend that keeps files in a folder of its own."""

    def __init__(
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, object]
    ) -> None:
        self._folder = Path(str(settings["folder"])) / str(settings["backend"])
        self._folder.mkdir(parents=True, exist_ok=True)
        super().__init__(memory, most, peer, settings)

    def forget(self, keys: Sequence[str]) -> None:
        self.store.clear()

    def close(self) -> None:
        if hasattr(self.store, "close"):
            self.store.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class File(_OnDisk):
    """`file` has the calls of the second version alone."""

    def made(self) -> Any:
        envs.SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR.set(str(self._folder))
        store = super().made()
        store.register_mem_host_pool_v2(self.memory.pool, PoolName.KV)
        return store

    def set(self, keys: Sequence[str]) -> None:
        self._all(self.store.batch_set_v2([self._transfer(keys, 0)]), "set")

    def get(self, keys: Sequence[str]) -> None:
        self._all(self.store.batch_get_v2([self._transfer(keys, self.most)]), "get")

    def exists(self, keys: Sequence[str]) -> int:
        return int(self.store.batch_exists_v2(keys).kv_hit_pages)

    def _transfer(self, keys: Sequence[str], first: int) -> PoolTransfer:
        indices: torch.Tensor = self.memory.indices(first, len(keys))
        return PoolTransfer(name=PoolName.KV, host_indices=indices, keys=list(keys))

    @staticmethod
    def _all(results: Mapping[str, Sequence[bool]], call: str) -> None:
        check_all(results[PoolName.KV], call)


class NixlPosix(_OnDisk):
    """`nixl` with its POSIX plugin, through the page cache as `file` is."""

    def made(self) -> Any:
        envs.SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR.set(str(self._folder))
        return super().made()

    def extra_config(self) -> Mapping[str, object]:
        return {
            "plugin": {"posix": {"active": True}},
            "use_direct_io": False,
            "l3_cleaner_enabled": False,
        }


class Mooncake(Backend):
    """`mooncake` over TCP. The source starts the master and gives all memory; a target gives none.

    `settings["verbs"]` is a folder with the libraries of VERBS, or empty where the system has them.
    """

    def __init__(
        self, memory: HostMemory, most: int, peer: Address, settings: Mapping[str, object]
    ) -> None:
        self._master: subprocess.Popen[bytes] | None = None
        self._verbs = str(settings.get("verbs") or "")
        load_verbs(self._verbs)
        self._ports = free_ports(2) if not peer else (int(str(peer["port"])), 0)
        if not peer:
            self._start_master()
        super().__init__(memory, most, peer, settings)

    def extra_config(self) -> Mapping[str, object]:
        # The master keeps room of its own, and lets go of pages only a while after they were read.
        segment_bytes = 0 if self.peer else 2 * self.tier_bytes + (256 << 20)
        return {
            "master_server_address": f"127.0.0.1:{self._ports[0]}",
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "protocol": "tcp",
            "global_segment_size": segment_bytes,
        }

    def address(self) -> Address:
        return {"port": self._ports[0]}

    def forget(self, keys: Sequence[str]) -> None:
        self.store.store.remove_all(True)

    def close(self) -> None:
        self.store.store.close()
        if self._master is not None:
            self._master.terminate()
            self._master.wait()

    def _start_master(self) -> None:
        found = util.find_spec("mooncake")
        if found is None or not found.submodule_search_locations:
            raise MoveError("mooncake is not installed")
        rpc_port, metrics_port = self._ports
        program = Path(next(iter(found.submodule_search_locations))) / "mooncake_master"
        path = os.pathsep.join(filter(None, [self._verbs, os.environ.get("LD_LIBRARY_PATH", "")]))
        self._master = subprocess.Popen(
            [
                str(program),
                f"-rpc_port={rpc_port}",
                f"-metrics_port={metrics_port}",
                "-enable_metric_reporting=false",
            ],
            env={**os.environ, "LD_LIBRARY_PATH": path},
        )
        deadline = time.monotonic() + _MASTER_SECONDS
        while not _answers(f"http://127.0.0.1:{metrics_port}/metrics"):
            if self._master.poll() is not None or time.monotonic() > deadline:
                raise MoveError("mooncake_master did not come up")
            time.sleep(0.05)


def load_verbs(folder: str) -> None:
    """Load VERBS from a folder, or from the system if that is empty; raises OSError if missing.

    By hand and into this process alone: a system that has libibverbs hands it to every UCX too.
    """
    for name in VERBS:
        ctypes.CDLL(str(Path(folder) / name) if folder else name)


def _answers(url: str) -> bool:
    try:
        with requests.Session() as session:
            session.trust_env = False  # a proxy has no business on loopback
            return session.get(url, timeout=2.0).ok
    except requests.RequestException:
        return False
