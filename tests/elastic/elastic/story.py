# SPDX-License-Identifier: Apache-2.0
"""The load, with a limit that is set half-way and lifted later."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kvstrata.exact_id.geometry import PoolGeometry
from kvstrata.exact_id.limits import LimitStatus, segment_name
from kvstrata.exact_id.ownership import SWA
from kvstrata_host import vmm

from . import kvctl
from .load import STEP_TOKENS, Load, Wave
from .miss import Miss
from .model import SPACES, Model
from .outcome import Command, Counts, Outcome, Phase, Pool, PoolSample, Sample
from .savings import Savings

_LIMITED_POOL = SWA
_LIMITED_SHARE = 0.6
"""The limit, as a share of what is mapped when it is set."""
_DRAIN_STEPS = 400


class StoryError(RuntimeError):
    """The load did not end."""


@dataclass(frozen=True)
class Plan:
    """How many steps bring requests; the limit comes half-way and goes after `lifted_step`."""

    steps: int = 120
    waves: int = 3
    crest: int = 8
    seed: int = 0

    @property
    def wave(self) -> Wave:
        return Wave(period_steps=self.steps // self.waves, crest=self.crest)

    @property
    def limited_step(self) -> int:
        return self.steps // 2

    @property
    def lifted_step(self) -> int:
        """Three eighths into the last wave, which is held down until then."""
        return self.steps - self.wave.period_steps * 5 // 8


class Story:
    """Plays a plan on a model; `tell` gets one line now and then."""

    def __init__(self, model: Model, plan: Plan, tell: Callable[[str], None]) -> None:
        self._model = model
        self._limited = model.pools[_LIMITED_POOL]
        self._plan = plan
        self._tell = tell
        self._load = Load(model, plan.wave, plan.seed)
        self._segment = segment_name(_LIMITED_POOL)
        state = vmm.state()
        self._native_driver_bytes = state.created_bytes - model.mapped_bytes
        self._start_committed_bytes = state.committed_bytes
        self._samples: list[Sample] = []

    def play(self, savings: Savings, misses: tuple[Miss, ...]) -> Outcome:
        """The outcome, with what was seen before; StoryError if some requests do not end."""
        plan, commands = self._plan, []
        began = time.monotonic()
        for step in range(plan.steps + _DRAIN_STEPS):
            self._load.step(step, arrivals=step < plan.steps)
            if step == plan.limited_step:
                limit = int(self._limited.mapped_bytes * _LIMITED_SHARE)
                commands.append(self._command(step, limit))
            elif step == plan.lifted_step:
                commands.append(self._command(step, self._limited.geometry.virtual_bytes))
            self._sample(step)
            if step >= plan.steps and not self._load.running and not self._load.waiting:
                break
        else:
            raise StoryError(f"{len(self._load.running)} requests did not end")
        load_s = time.monotonic() - began
        return self._outcome(*commands, load_s=load_s, savings=savings, misses=misses)

    def _command(self, step: int, limit_bytes: int) -> Command:
        kvctl.set_limit(self._segment, limit_bytes)
        state = self._limited.limit_state
        self._tell(
            f"step {step}: kvctl limit {self._segment} {limit_bytes >> 20} MiB; "
            f"{state.mapped_bytes >> 20} MiB are mapped: {state.status.value}"
        )
        return Command(step, limit_bytes, kvctl.used_bytes(self._segment), state.mapped_bytes)

    def _phase(self, step: int) -> Phase:
        if step < self._plan.limited_step:
            return "free"
        if step >= self._plan.lifted_step:
            return "lifted"
        status = self._limited.limit_state.status
        return "deferred" if status is LimitStatus.DEFERRED else "applied"

    def _sample(self, step: int) -> None:
        state, model = vmm.state(), self._model
        phase = self._phase(step)
        pools = {}
        for name in SPACES:
            ids = list(self._load.live_ids(name))
            pools[name] = PoolSample(
                live_pages=model.live_pages(name),
                booked_pages=len(ids),
                mapped_bytes=model.pools[name].mapped_bytes,
                expected_bytes=model.footprint(name).mapped_bytes(ids),
            )
        sample = Sample(
            step=step,
            phase=phase,
            running=len(self._load.running),
            waiting=len(self._load.waiting),
            pools=pools,
            driver_bytes=state.created_bytes - self._native_driver_bytes,
            committed_bytes=state.committed_bytes,
        )
        changed = self._samples and self._samples[-1].phase != phase
        self._samples.append(sample)
        if changed and phase == "applied":
            mapped = pools[_LIMITED_POOL].mapped_bytes
            self._tell(f"step {step}: {mapped >> 20} MiB are mapped: applied")
        if step % 16 == 0:
            self._tell(
                f"step {step}: {sample.running} requests, {sample.waiting} waiting, "
                f"{sample.mapped_bytes >> 20} MiB mapped"
            )

    def _outcome(
        self,
        limited: Command,
        lifted: Command,
        *,
        load_s: float,
        savings: Savings,
        misses: tuple[Miss, ...],
    ) -> Outcome:
        load = self._load
        return Outcome(
            pools={pool.name: _pool(pool.geometry) for pool in self._model.pools},
            limited_pool=_LIMITED_POOL,
            samples=tuple(self._samples),
            limited=limited,
            lifted=lifted,
            counts=Counts(
                requests=load.requests,
                finished=load.finished,
                retracted=load.retracted,
                pages_leased=load.pages_leased,
                pages_retired=load.pages_retired,
                pages_compared=load.contents.pages_compared,
                pages_damaged=load.contents.pages_damaged,
                history_compared=load.history_compared,
                history_damaged=load.history_damaged,
                misses=load.misses,
                misses_with_traces=load.misses_with_traces,
            ),
            step_tokens=STEP_TOKENS,
            start_committed_bytes=self._start_committed_bytes,
            load_s=load_s,
            savings=savings,
            misses=misses,
        )


def _pool(geometry: PoolGeometry) -> Pool:
    return Pool(
        pages=geometry.page_count,
        page_bytes=geometry.page_bytes * geometry.layer_count,
        layers=geometry.layer_count,
        vmm_page_bytes=geometry.vmm_page_bytes,
        native_bytes=geometry.native_bytes,
        floor_bytes=geometry.floor_bytes,
    )
