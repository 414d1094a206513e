# SPDX-License-Identifier: Apache-2.0
"""The real kvcached over host memory, and pools of it that fit a test."""

import os

# Read by kvcached and Triton when they are imported.
os.environ["KVCACHED_CONTIGUOUS_LAYOUT"] = "false"
os.environ["KVCACHED_LOG_LEVEL"] = "CRITICAL"
os.environ["KVCACHED_IPC_NAME"] = f"exact-id-test-{os.getpid()}"
os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Callable, Iterator

import pytest

from kvstrata.exact_id.backing import start_kvcached
from kvstrata.exact_id.geometry import PoolGeometry
from kvstrata.exact_id.transaction import IdSpace, ManagedPools

MakePools = Callable[..., ManagedPools]


@pytest.fixture(scope="session")
def kvcached() -> None:
    """kvcached, started in this process."""
    start_kvcached("cpu")


@pytest.fixture
def made_pools(kvcached: None) -> Iterator[MakePools]:
    """Makes ready pools of the given geometries; those named swa... follow SWA ids."""
    made: list[ManagedPools] = []

    def make(**geometries: PoolGeometry) -> ManagedPools:
        import torch

        pools = ManagedPools("cpu")
        made.append(pools)
        for name in geometries:
            pools.select(name, IdSpace.SWA if name.startswith("swa") else IdSpace.FULL)
        for name, geometry in geometries.items():
            pools.make(name, geometry, torch.uint8)
        pools.open()
        return pools

    yield make
    for pools in made:
        pools.close()


@pytest.fixture(scope="session")
def switched_on(kvcached: None) -> Iterator[None]:
    """This process with ENABLE_KVCACHED on and the hooks in place, without kvcached's autopatch."""
    from .dsv4 import publish_configuration

    publish_configuration()
    from kvstrata.exact_id import plugin

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ENABLE_KVCACHED", "1")
        plugin.load()
        yield
