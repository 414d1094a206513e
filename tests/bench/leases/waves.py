# SPDX-License-Identifier: Apache-2.0
"""What is mapped while requests come in waves through SGLang's allocator, and what is left."""

from collections.abc import Callable

from elastic.load import Load, Wave
from elastic.model import Model

from kvstrata_host import vmm

from .exactness import Exactness, Step

_WAVE = Wave(period_steps=40, crest=6)
_SEED = 1


class WavesError(RuntimeError):
    """The load did not end."""


def measure(model: Model, steps: int, tell: Callable[[str], None]) -> Exactness:
    """Run the load for `steps` steps and until it has ended; `tell` gets a line now and then."""
    footprints = {pool.name: model.footprint(pool.name) for pool in model.pools}
    load = Load(model, _WAVE, _SEED)
    start = vmm.state().committed_bytes
    seen: list[Step] = []
    for number in range(10 * steps):
        load.step(number, arrivals=number < steps)
        expected = sum(
            footprint.mapped_bytes(load.live_ids(name)) for name, footprint in footprints.items()
        )
        seen.append(Step(number, model.mapped_bytes, expected))
        if number % 10 == 0:
            tell(f"  step {number}: {len(load.running)} requests")
        if number >= steps and not load.running and not load.waiting:
            break
    else:
        raise WavesError(f"{len(load.running)} requests did not end")
    return Exactness(
        steps=tuple(seen),
        left_bytes=vmm.state().committed_bytes - start,
        tolerance_bytes=sum(pool.geometry.bundle_bytes for pool in model.pools),
    )
