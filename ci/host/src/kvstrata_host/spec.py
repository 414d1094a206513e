# SPDX-License-Identifier: Apache-2.0
"""What a server is started with: one frozen value, its command line and its environment."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from kvstrata_host.model import Dtype
from kvstrata_host.plugin import PLATFORM

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Layout = Literal["layer_first", "page_first", "page_first_direct"]
IoBackend = Literal["direct", "kernel"]
PrefetchPolicy = Literal["best_effort", "wait_complete", "timeout"]

_RUNNABLE = (
    ("layer_first", "direct"),
    ("layer_first", "kernel"),
    ("page_first", "kernel"),
    ("page_first_direct", "direct"),
)


@dataclasses.dataclass(frozen=True)
class ServerSpec:
    """One SGLang server with HiCache on the loopback interface.

    `port` 0 takes a free one. `tp_size` ranks share the model, each a process of its own. `dtype`
    is of the weights in memory and of the KV: left to itself, SGLang runs float32 weights in
    float16, for which many CPUs have no fast arithmetic.
    `storage_backend` None runs HiCache without storage. `extra_config` goes to
    --hicache-storage-backend-extra-config, `extra_args` behind all other arguments, `extra_env`
    over the environment. With an `admin_key`, storage can be attached and detached at run time, and
    whoever flushes needs the key. The log is overwritten at start, and its folder is the server's
    working directory. `python` is the interpreter, this process's own unless another is named.
    """

    name: str
    model: Path
    log: Path
    port: int = 0
    tp_size: int = 1
    dtype: Dtype = "float32"
    page_size_tokens: int = 16
    max_total_tokens: int = 8192
    context_tokens: int = 4096
    max_running_requests: int = 4
    hicache_ratio: float = 2.0
    layout: Layout = "page_first_direct"
    io_backend: IoBackend = "direct"
    storage_backend: str | None = None
    extra_config: Mapping[str, Json] = dataclasses.field(default_factory=dict)
    prefetch_policy: PrefetchPolicy = "wait_complete"
    admin_key: str = ""
    extra_args: tuple[str, ...] = ()
    extra_env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python: Path = Path(sys.executable)

    def __post_init__(self) -> None:
        if (self.layout, self.io_backend) not in _RUNNABLE:
            allowed = ", ".join("/".join(pair) for pair in _RUNNABLE)
            raise ValueError(
                f"server {self.name}: layout/io_backend {self.layout}/{self.io_backend} "
                f"does not run; allowed: {allowed}"
            )
        if not 0 <= self.port <= 65535:
            raise ValueError(f"server {self.name}: port={self.port} must be 0 to 65535")

    def command(self, port: int) -> tuple[str, ...]:
        """The whole command line."""
        options: dict[str, object] = {
            "model-path": self.model.absolute(),
            "served-model-name": self.model.name,
            "device": "cpu",
            "dtype": self.dtype,
            "host": "127.0.0.1",
            "port": port,
            "tp-size": self.tp_size,
            "page-size": self.page_size_tokens,
            "max-total-tokens": self.max_total_tokens,
            "max-running-requests": self.max_running_requests,
            "context-length": self.context_tokens,
            "mem-fraction-static": 0.5,
            "hicache-ratio": self.hicache_ratio,
            "hicache-mem-layout": self.layout,
            "hicache-io-backend": self.io_backend,
            "hicache-write-policy": "write_through",
        }
        if self.storage_backend is not None:
            options["hicache-storage-backend"] = self.storage_backend
            options["hicache-storage-prefetch-policy"] = self.prefetch_policy
            options["hicache-storage-backend-extra-config"] = json.dumps(dict(self.extra_config))
        if self.admin_key:
            options["admin-api-key"] = self.admin_key
        return (
            str(self.python),
            "-m",
            "sglang.launch_server",
            *(text for key, value in options.items() for text in (f"--{key}", str(value))),
            "--enable-hierarchical-cache",
            "--enable-cache-report",
            "--enable-metrics",
            "--disable-overlap-schedule",
            "--disable-cuda-graph",
            "--sleep-on-idle",
            "--skip-server-warmup",
            *self.extra_args,
        )

    def environment(self) -> dict[str, str]:
        """This process's environment with what the host platform needs, and `extra_env` over it."""
        return {
            **os.environ,
            "SGLANG_PLATFORM": PLATFORM,
            "TRITON_INTERPRET": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            **self._cores(),
            **self.extra_env,
        }

    def _cores(self) -> dict[str, str]:
        """One core for each of several ranks.

        SGLang starts no more ranks than the machine has NUMA nodes, unless it is told their cores.
        """
        if self.tp_size == 1:
            return {}
        cores = sorted(os.sched_getaffinity(0))
        shares = (str(cores[rank % len(cores)]) for rank in range(self.tp_size))
        return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(shares)}
