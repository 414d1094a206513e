# SPDX-License-Identifier: Apache-2.0
"""When the managed pools of a model may be touched: all together, or never."""

from collections.abc import Callable, Mapping
from enum import Enum
from threading import Condition

from .errors import NotReadyError, PoolFailedError


class State(Enum):
    """NATIVE pools are SGLang's own; the others go from CONSTRUCTING to READY, or to FAILED."""

    NATIVE = "native"
    CONSTRUCTING = "constructing"
    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"


class Barrier:
    """Holds back every selected pool until all of them have been made.

    While one is missing, nothing of any pool may be mapped, resized, trimmed or allocated ahead.
    A failure is for good, reaches every pool and everybody who waits.
    """

    def __init__(self) -> None:
        self._states: dict[str, State] = {}
        self._failure: PoolFailedError | None = None
        self._cause: Exception | None = None
        self._settled = False
        self._is_open = False
        self._changed = Condition()

    def select(self, pool: str) -> None:
        """Declare a pool that is about to be made."""
        with self._changed:
            self._refuse_failed()
            if self._settled:
                raise NotReadyError(f"pool {pool} was selected after the others had become ready")
            if pool in self._states:
                raise NotReadyError(f"pool {pool} was selected twice")
            self._states[pool] = State.CONSTRUCTING

    def made(self, pool: str) -> None:
        """A selected pool has its virtual memory."""
        with self._changed:
            self._refuse_failed()
            if self._states.get(pool) is not State.CONSTRUCTING:
                raise NotReadyError(f"pool {pool} is {self.state_of(pool).value}, not selected")
            self._states[pool] = State.PENDING

    def open(self, prepare: Callable[[], None]) -> None:
        """Run `prepare`, which may map; then every pool is ready.

        Whatever it raises, and a selected pool that was never made, is a failure.
        """
        with self._changed:
            self._refuse_failed()
            missing = [name for name, state in self._states.items() if state is not State.PENDING]
            if missing:
                self.fail(f"pool {', '.join(missing)} was selected but never made")
                self._refuse_failed()
            self._become(State.READY)
            try:
                prepare()
            except Exception as error:
                problem = f"preparing the pools failed: {error}"
                self.fail(problem, error)
                raise PoolFailedError(problem) from error
            self._settled = True
            self._changed.notify_all()

    def fail(self, problem: str, cause: Exception | None = None) -> None:
        """Fail every pool for good; the first failure is the one that is reported."""
        with self._changed:
            if self._failure is None:
                self._failure, self._cause = PoolFailedError(problem), cause
            self._become(State.FAILED)
            self._settled = True
            self._changed.notify_all()

    def check(self) -> None:
        """Raise NotReadyError or PoolFailedError unless every pool is ready."""
        if not self._is_open:
            self._refuse_failed()
            for pool, state in self._states.items():
                if state is not State.READY:
                    raise NotReadyError(f"pool {pool} is {state.value}; nothing may be touched yet")

    def wait(self) -> None:
        """Return once every pool is ready; raises PoolFailedError as soon as one failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._settled)
            self._refuse_failed()

    def state_of(self, pool: str) -> State:
        return self._states.get(pool, State.NATIVE)

    @property
    def states(self) -> Mapping[str, State]:
        """The state of each selected pool; a copy."""
        return dict(self._states)

    def _become(self, state: State) -> None:
        self._states = dict.fromkeys(self._states, state)
        self._is_open = state is State.READY

    def _refuse_failed(self) -> None:
        if self._failure is not None:
            raise PoolFailedError(str(self._failure)) from self._cause
