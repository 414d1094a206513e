# SPDX-License-Identifier: Apache-2.0
"""A run of the demo as it should be, for tests that make one thing about it go wrong."""

from elastic.miss import Miss
from elastic.outcome import Command, Counts, Outcome, Phase, Pool, PoolSample, Sample
from elastic.savings import Course, Level, PoolSize, Savings

MIB = 1 << 20
VMM_PAGE_BYTES = 2 * MIB
LAYERS = 4
BUNDLE = VMM_PAGE_BYTES * LAYERS
LIMIT = 5 * BUNDLE
NATIVE_BUNDLES = {"swa": 25, "c4": 40, "indexer": 10}

# VMM pages mapped in each layer of the sliding-window pool, step by step.
COURSE: dict[Phase, list[int]] = {
    "free": [1, 6, 10, 7, 3, 8, 11],
    "deferred": [11, 9, 6],
    "applied": [5, 4, 5],
    "lifted": [9, 12, 1],
}
LEVELS: list[tuple[Course, float, int]] = [("growing", 0.1, 3), ("growing", 0.9, 30)]


def pool_sample(pages: int) -> PoolSample:
    live = 10 * (pages - 1)
    return PoolSample(live, live, mapped_bytes=pages * BUNDLE, expected_bytes=pages * BUNDLE)


def sample(step: int, phase: Phase, pages: int) -> Sample:
    pools = {"swa": pool_sample(pages), "c4": pool_sample(pages), "indexer": pool_sample(1)}
    mapped = (2 * pages + 1) * BUNDLE
    return Sample(
        step=step,
        phase=phase,
        running=10 * (pages - 1),
        waiting=7 if phase == "applied" else 0,
        pools=pools,
        driver_bytes=mapped,
        committed_bytes=mapped - MIB // 2,
    )


def level(course: Course, live_share: float, bundles: int) -> Level:
    mapped = {"swa": 2 * BUNDLE, "c4": bundles * BUNDLE, "indexer": BUNDLE}
    total = sum(mapped.values())
    return Level(
        course=course,
        live_share=live_share,
        live_pages=dict.fromkeys(mapped, 10 * bundles),
        mapped_bytes=mapped,
        expected_bytes=dict(mapped),
        driver_bytes=total,
        committed_bytes=total - MIB,
    )


def good_savings() -> Savings:
    native = {**NATIVE_BUNDLES, "c128": 1}
    return Savings(
        layers=2 * LAYERS,
        tokens=524_288,
        sizes=tuple(
            PoolSize(
                pool=name,
                is_managed=name != "c128",
                why="why it is so",
                layers=LAYERS,
                pages=2048,
                page_bytes=8448,
                planned_bytes=bundles * BUNDLE,
                made_bytes=bundles * BUNDLE,
            )
            for name, bundles in native.items()
        ),
        levels=tuple(level(*each) for each in LEVELS),
        pages_compared=900,
        pages_damaged=0,
    )


def miss(cause: str) -> Miss:
    return Miss(
        cause=cause,
        pages=171,
        missed=True,
        is_untouched=True,
        allocations=84,
        pages_freed=90,
        succeeded=True,
    )


def good_run() -> Outcome:
    course = [(phase, pages) for phase, counts in COURSE.items() for pages in counts]
    return Outcome(
        pools={
            name: Pool(
                pages=300,
                page_bytes=599_040,
                layers=LAYERS,
                vmm_page_bytes=VMM_PAGE_BYTES,
                native_bytes=bundles * BUNDLE,
                floor_bytes=BUNDLE,
            )
            for name, bundles in NATIVE_BUNDLES.items()
        },
        limited_pool="swa",
        samples=tuple(sample(step, *each) for step, each in enumerate(course)),
        limited=Command(7, LIMIT, kvctl_used_bytes=11 * BUNDLE, mapped_bytes=11 * BUNDLE),
        lifted=Command(13, 26 * BUNDLE, kvctl_used_bytes=5 * BUNDLE, mapped_bytes=5 * BUNDLE),
        counts=Counts(
            requests=40,
            finished=40,
            retracted=1,
            pages_leased=500,
            pages_retired=300,
            pages_compared=500,
            pages_damaged=0,
            history_compared=200,
            history_damaged=0,
            misses=3,
            misses_with_traces=0,
        ),
        step_tokens=16,
        start_committed_bytes=0,
        load_s=1.0,
        savings=good_savings(),
        misses=(miss("a limit"), miss("the device")),
    )
