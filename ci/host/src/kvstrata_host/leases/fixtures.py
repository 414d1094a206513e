# SPDX-License-Identifier: Apache-2.0
"""Fixtures over the real kvcached on host memory. Import this before kvcached and SGLang."""

import os

# Read by kvcached and Triton when they are imported.
os.environ["KVCACHED_CONTIGUOUS_LAYOUT"] = "false"
os.environ["KVCACHED_LOG_LEVEL"] = "CRITICAL"
os.environ["KVCACHED_IPC_NAME"] = f"leases-test-{os.getpid()}"
os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import pytest

from kvstrata.exact_id.accounting import RESERVATIONS
from kvstrata.exact_id.backing import start_kvcached

if TYPE_CHECKING:
    from .model import Model


class Plugin(Protocol):
    """The module of a slice's entry point for SGLang."""

    def load(self) -> None: ...


@pytest.fixture(scope="session")
def kvcached() -> None:
    """kvcached, started in this process."""
    start_kvcached("cpu")


@pytest.fixture
def no_reservations() -> Iterator[None]:
    """What is accounted in this process is of one test."""
    RESERVATIONS.clear()
    yield
    RESERVATIONS.clear()


@pytest.fixture
def model(switched_on: None) -> Iterator["Model"]:
    """A model of which the pools are managed that the slice and those under it claim."""
    from .model import Model

    made = Model()
    yield made
    made.pools.close()


@contextmanager
def switch_on(*plugins: Plugin) -> Iterator[None]:
    """Turn ENABLE_KVCACHED on and load `plugins`, without kvcached's autopatch."""
    from .model import publish_configuration

    publish_configuration()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ENABLE_KVCACHED", "1")
        for plugin in plugins:
            plugin.load()
        yield
