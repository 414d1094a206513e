# SPDX-License-Identifier: Apache-2.0
"""NIXL's progress thread: left out, because it spins on a core of its own in every rank.

KVCR polls NIXL from a thread of its own, which drives the transfers all the same. KVCR 0.1.1 has
no setting for this and makes the NIXL agent itself, unless it finds one in place.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvstrata.seams import Hook, Kind, Pin, Seams

if TYPE_CHECKING:
    from kvcr.progress import _KVCRProgress

_AGENT_THREADS = 4
"""What KVCR 0.1.1 asks for."""


def make_agent_without_thread(original: Callable[..., None], progress: "_KVCRProgress") -> None:
    """AROUND the creation of KVCR's NIXL agent."""
    from nixl._api import nixl_agent, nixl_agent_config

    progress._nixl_agent = nixl_agent(
        progress._nixl_agent_name,
        nixl_agent_config(
            enable_prog_thread=False,
            num_threads=_AGENT_THREADS,
            capture_telemetry=True,
            enable_listen_thread=True,
            listen_port=progress._nixl_listen_port,
            backends=progress._dram_backends,
        ),
    )
    original(progress)


SEAMS = Seams(
    slice="kvstrata-kvcr",
    upstream="kvcr",
    switch="nixl_progress_thread false in --hicache-storage-backend-extra-config",
    hooks=(
        Hook(
            kind=Kind.AROUND,
            function=make_agent_without_thread,
            why="KVCR always starts NIXL's progress thread, which spins on a core of its own.",
            pins={"0.1.1": Pin("kvcr.progress._KVCRProgress._initialize_nixl", "bb555e6825c5a04f")},
        ),
    ),
)
