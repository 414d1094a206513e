# SPDX-License-Identifier: Apache-2.0
"""The real kvcached over host memory, and pools of it that fit a test."""

from collections.abc import Callable, Iterator

import pytest

from kvstrata.exact_id import plugin
from kvstrata.exact_id.geometry import PoolGeometry
from kvstrata.exact_id.transaction import IdSpace, ManagedPools
from kvstrata_host.leases.fixtures import kvcached, model, no_reservations, switch_on

__all__ = ["kvcached", "made_pools", "model", "no_reservations", "switched_on"]

MakePools = Callable[..., ManagedPools]


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
    """This process with ENABLE_KVCACHED on and the hooks of exact-id in place."""
    with switch_on(plugin):
        yield
