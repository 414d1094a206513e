# SPDX-License-Identifier: Apache-2.0
"""A server of a Llama with `kvcr` as its storage, for each thing that can be said of kvcached."""

import dataclasses
import sysconfig
import time
import venv
from collections.abc import Iterable, Mapping
from importlib.metadata import distribution
from pathlib import Path

from demo.prompt import draw

from kvstrata_host import damage
from kvstrata_host.model import TINY, build_model
from kvstrata_host.ports import free_ports
from kvstrata_host.server import Generation, Server, ServerError
from kvstrata_host.spec import ServerSpec

PAGE_TOKENS = 16
PROMPT = draw("combined", count=400, seed=0)

ABSENT, OFF, ON, DAMAGED = "absent", "off", "on", "damaged"
_SWITCHED_ON = {
    "ENABLE_KVCACHED": "1",
    "KVCACHED_AUTOPATCH": "0",
    "KVCACHED_CONTIGUOUS_LAYOUT": "false",
}
ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    ABSENT: {},
    OFF: {"ENABLE_KVCACHED": "0"},
    ON: _SWITCHED_ON,
    DAMAGED: {**_SWITCHED_ON, damage.VARIABLE: damage.RESTORED_PAGES},
}
"""Variables of each server. For ABSENT, kvcached and the slices that need it are not installed."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """One server's answers to one prompt: computed, and again after its pools were emptied."""

    computed: Generation
    restored: Generation


def copy_environment(folder: Path, distributions: Iterable[str]) -> Path:
    """A layer like the one that runs this, with `distributions` alone; returns its Python."""
    venv.create(folder, symlinks=True)
    here = Path(sysconfig.get_path("purelib"))
    there = folder / here.relative_to(sysconfig.get_path("data"))
    files = [here / "_base.pth"]
    for name in distributions:
        files += [Path(str(file.locate())) for file in distribution(name).files or ()]
    for file in files:
        if file.is_relative_to(here):
            link = there / file.relative_to(here)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
    return folder / "bin" / "python"


def server_specs(folder: Path, without_kvcached: Path) -> Mapping[str, ServerSpec]:
    """The servers by the names in ENVIRONMENTS; `without_kvcached` is ABSENT's Python."""
    model = build_model(folder / "model", TINY)
    ports = iter(free_ports(2 * len(ENVIRONMENTS)))
    specs = {
        name: ServerSpec(
            name=name,
            model=model,
            log=folder / f"{name}.log",
            page_size_tokens=PAGE_TOKENS,
            max_total_tokens=2048,
            context_tokens=1024,
            storage_backend="kvcr",
            extra_config={
                "dram_bytes": "64MiB",
                "control_port": next(ports),
                "nixl_port": next(ports),
            },
            extra_env=variables,
        )
        for name, variables in ENVIRONMENTS.items()
    }
    absent = dataclasses.replace(specs[ABSENT], python=without_kvcached)
    return {**specs, ABSENT: absent}


def ask(spec: ServerSpec) -> Answers:
    """Start the server, let it compute, back up and restore, and stop it."""
    pages = len(PROMPT) // PAGE_TOKENS
    with Server(spec, start_timeout_s=400) as server:
        computed = server.generate(PROMPT, max_new_tokens=16)
        deadline = time.monotonic() + 60
        while server.metrics().get("kvcr_backup_pages_total", 0.0) < pages:
            if time.monotonic() > deadline:
                raise ServerError(spec.name, f"no backup of {pages} pages in 60 s", spec.log)
            time.sleep(0.1)
        server.flush()
        return Answers(computed, server.generate(PROMPT, max_new_tokens=16))
