# SPDX-License-Identifier: Apache-2.0
import threading
from collections.abc import Callable

import pytest

from kvstrata.exact_id.errors import NotReadyError, PoolFailedError
from kvstrata.exact_id.readiness import Barrier, State


def nothing() -> None:
    """Prepares nothing."""


def pending(*pools: str) -> Barrier:
    barrier = Barrier()
    for pool in pools:
        barrier.select(pool)
        barrier.made(pool)
    return barrier


def test_a_pool_goes_from_native_over_constructing_and_pending_to_ready() -> None:
    barrier = Barrier()
    seen = [barrier.state_of("swa")]
    barrier.select("swa")
    seen.append(barrier.state_of("swa"))
    barrier.made("swa")
    seen.append(barrier.state_of("swa"))
    barrier.open(nothing)
    seen.append(barrier.state_of("swa"))

    assert seen == [State.NATIVE, State.CONSTRUCTING, State.PENDING, State.READY]
    barrier.check()


@pytest.mark.parametrize("late", [State.CONSTRUCTING, State.PENDING], ids=lambda state: state.value)
def test_one_pool_that_is_not_ready_holds_back_all(late: State) -> None:
    barrier = pending("swa")
    barrier.select("c4")
    if late is State.PENDING:
        barrier.made("c4")

    with pytest.raises(NotReadyError, match="nothing may be touched yet"):
        barrier.check()


def test_a_selected_pool_that_was_never_made_fails_all() -> None:
    barrier = pending("swa")
    barrier.select("c4")

    with pytest.raises(PoolFailedError, match="c4 was selected but never made"):
        barrier.open(nothing)

    assert set(barrier.states.values()) == {State.FAILED}


def test_what_is_prepared_may_touch_the_pools_and_comes_before_anybody_else() -> None:
    barrier = pending("swa")
    order: list[str] = []

    def prepare() -> None:
        barrier.check()
        order.append("prepared")

    def wait() -> None:
        barrier.wait()
        order.append("waiter")

    waiter = threading.Thread(target=wait)
    waiter.start()
    barrier.open(prepare)
    waiter.join(timeout=10)

    assert order == ["prepared", "waiter"]


def test_a_failure_while_preparing_fails_all_and_keeps_its_cause() -> None:
    barrier = pending("swa", "c4")
    cause = ValueError("no memory for row 0")

    def prepare() -> None:
        raise cause

    with pytest.raises(PoolFailedError, match="no memory for row 0") as caught:
        barrier.open(prepare)

    assert caught.value.__cause__ is cause
    with pytest.raises(PoolFailedError, match="no memory for row 0") as again:
        barrier.check()
    assert again.value.__cause__ is cause


def test_a_failure_reaches_who_waits_and_does_not_let_it_pass() -> None:
    barrier = pending("swa")
    outcome: list[object] = []

    def wait() -> None:
        try:
            barrier.wait()
        except PoolFailedError as error:
            outcome.append(str(error))
        else:
            outcome.append("passed")

    waiter = threading.Thread(target=wait)
    waiter.start()
    barrier.fail("lost")
    waiter.join(timeout=10)

    assert outcome == ["lost"]


def test_only_the_first_failure_is_reported() -> None:
    barrier = pending("swa")
    barrier.fail("first")
    barrier.fail("second")

    with pytest.raises(PoolFailedError, match="first"):
        barrier.check()


TOO_LATE: dict[str, Callable[[Barrier], None]] = {
    "selecting when the others are ready": lambda barrier: barrier.select("late"),
    "making what was not selected": lambda barrier: barrier.made("late"),
    "making twice": lambda barrier: barrier.made("swa"),
}


@pytest.mark.parametrize("act", TOO_LATE.values(), ids=TOO_LATE)
def test_steps_out_of_turn_are_refused(act: Callable[[Barrier], None]) -> None:
    barrier = pending("swa")
    barrier.open(nothing)

    with pytest.raises(NotReadyError):
        act(barrier)


def test_a_pool_is_selected_once() -> None:
    barrier = pending("swa")

    with pytest.raises(NotReadyError, match="twice"):
        barrier.select("swa")


def test_nothing_follows_a_failure() -> None:
    barrier = pending("swa")
    barrier.fail("lost")

    acts: list[Callable[[], None]] = [
        lambda: barrier.select("c4"),
        lambda: barrier.open(nothing),
        barrier.wait,
    ]
    for act in acts:
        with pytest.raises(PoolFailedError, match="lost"):
            act()
