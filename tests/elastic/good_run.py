# SPDX-License-Identifier: Apache-2.0
"""A run of the demo as it should be, for tests that make one thing about it go wrong."""

from elastic.outcome import Command, Counts, Outcome, Phase, Pool, Sample

MIB = 1 << 20
VMM_PAGE_BYTES = 2 * MIB
LAYERS = 4
BUNDLE = VMM_PAGE_BYTES * LAYERS
LIMIT = 5 * BUNDLE

# VMM pages mapped in each layer, step by step.
COURSE: dict[Phase, list[int]] = {
    "free": [1, 6, 10, 7, 3, 8, 11],
    "deferred": [11, 9, 6],
    "applied": [5, 4, 5],
    "lifted": [9, 12, 1],
}


def sample(step: int, phase: Phase, pages: int) -> Sample:
    live = 10 * (pages - 1)
    return Sample(
        step=step,
        phase=phase,
        running=live,
        waiting=7 if phase == "applied" else 0,
        live_pages=live,
        booked_pages=live,
        mapped_bytes=pages * BUNDLE,
        expected_bytes=pages * BUNDLE,
        driver_bytes=pages * BUNDLE,
        committed_bytes=pages * BUNDLE - MIB // 2,
    )


def good_run() -> Outcome:
    course = [(phase, pages) for phase, counts in COURSE.items() for pages in counts]
    return Outcome(
        pool=Pool(
            pages=300,
            page_bytes=599_040,
            layers=LAYERS,
            vmm_page_bytes=VMM_PAGE_BYTES,
            native_bytes=25 * BUNDLE,
            floor_bytes=BUNDLE,
        ),
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
            misses=3,
            misses_with_traces=0,
        ),
        step_tokens=16,
        start_committed_bytes=0,
        load_s=1.0,
    )
