# SPDX-License-Identifier: Apache-2.0
"""What the demo claims, each decided by what was seen."""

from collections.abc import Sequence

from demo.claim import Claim

from .outcome import Outcome, Sample
from .savings import Level, Savings

_FOLLOWS_SHARE = 0.5
"""Between two waves at most this share of the lower one's crest may be mapped."""
_SMALL_SHARE = 0.25
"""Of what all pools take natively, at most this much may be taken at the first, small load."""


def decide(outcome: Outcome) -> tuple[Claim, ...]:
    """Every claim of the demo, held or not."""
    return (
        _mapped_exactly(outcome),
        _follows_load(outcome),
        _committed_within(outcome),
        _memory_returned(outcome),
        _contents_kept(outcome),
        _history_kept(outcome),
        _misses_without_traces(outcome),
        _limit_deferred(outcome),
        _limit_applied(outcome),
        _limit_lifted(outcome),
        _kvctl_agrees(outcome),
        _all_served(outcome),
        _sizes_as_planned(outcome.savings),
        _loads_mapped_exactly(outcome.savings),
        _less_than_natively(outcome.savings),
        _miss_rolled_back(outcome),
        _same_request_succeeds(outcome),
    )


def mib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"


def _mapped_exactly(outcome: Outcome) -> Claim:
    samples = outcome.samples
    wrong = [
        sample.step
        for sample in samples
        if sample.mapped_bytes != sample.driver_bytes
        or any(
            pool.mapped_bytes != pool.expected_bytes or pool.live_pages != pool.booked_pages
            for pool in sample.pools.values()
        )
    ]
    leased = outcome.counts.pages_leased
    seen = f"{len(samples)} steps, {leased:,} pages leased"
    return Claim(
        "mapped_exactly",
        "At every step exactly the memory under live pages is mapped in every pool: by the pools' "
        "counts, by the driver's, and by the definition.",
        bool(leased) and not wrong,
        f"{seen}; different at steps {_some(wrong)}" if wrong else f"{seen}; never different",
    )


def _follows_load(outcome: Outcome) -> Claim:
    mapped = [sample.mapped_bytes for sample in outcome.during("free")]
    crest, trough, next_crest = _first_wave(mapped)
    native = outcome.native_bytes
    return Claim(
        "follows_load",
        "Memory grows and falls with the load, and grows again, below the native reservation.",
        trough <= _FOLLOWS_SHARE * min(crest, next_crest)
        and 0 < outcome.peak.mapped_bytes < native,
        f"{mib(crest)}, then {mib(trough)}, then {mib(next_crest)}; at most "
        f"{mib(outcome.peak.mapped_bytes)}, natively {mib(native)}",
    )


def _first_wave(mapped: Sequence[int]) -> tuple[int, int, int]:
    """The least between two crests, such that the lower of both is as far above it as can be."""
    best = (0, 0, 0)
    for at in range(1, len(mapped) - 1):
        found = (max(mapped[:at]), mapped[at], max(mapped[at + 1 :]))
        if min(found[0], found[2]) - found[1] > min(best[0], best[2]) - best[1]:
            best = found
    return best


def _committed_within(outcome: Outcome) -> Claim:
    start = outcome.start_committed_bytes
    beyond = [
        sample.step
        for sample in outcome.samples
        if sample.committed_bytes - start > sample.mapped_bytes
    ]
    peak = outcome.peak
    resident = peak.committed_bytes - start
    return Claim(
        "committed_within",
        "The kernel never gives more memory than is mapped: what was unmapped is resident no more.",
        not beyond and resident > 0,
        f"at the crest {mib(resident)} resident of {mib(peak.mapped_bytes)} mapped"
        + (f"; beyond it at steps {_some(beyond)}" if beyond else ""),
    )


def _memory_returned(outcome: Outcome) -> Claim:
    last = outcome.samples[-1]
    tolerance = sum(pool.vmm_page_bytes * pool.layers for pool in outcome.pools.values())
    left = last.committed_bytes - outcome.start_committed_bytes
    return Claim(
        "memory_returned",
        "After the last request only the rows 0 are mapped, and resident memory is back at the "
        "start, within one VMM page for each layer of each pool.",
        last.mapped_bytes == outcome.floor_bytes and abs(left) <= tolerance,
        f"{mib(last.mapped_bytes)} mapped; {mib(left)} resident more than at the start, "
        f"{mib(tolerance)} allowed",
    )


def _contents_kept(outcome: Outcome) -> Claim:
    counts = outcome.counts
    return Claim(
        "contents_kept",
        "Every page of every pool still holds what was written to it, in every layer, when it is "
        "given back.",
        counts.pages_damaged == 0 and counts.pages_compared == counts.pages_leased,
        f"{counts.pages_compared:,} pages compared, {counts.pages_damaged:,} damaged",
    )


def _history_kept(outcome: Outcome) -> Claim:
    counts = outcome.counts
    return Claim(
        "history_kept",
        "Compressed history keeps every byte after its window was given back.",
        counts.history_compared > 0 and counts.history_damaged == 0,
        f"{counts.history_compared:,} compressed pages outlived {counts.pages_retired:,} "
        f"pages of the window; {counts.history_damaged:,} damaged",
    )


def _misses_without_traces(outcome: Outcome) -> Claim:
    counts = outcome.counts
    return Claim(
        "misses_without_traces",
        "An allocation that misses under the limit changes neither SGLang's free lists and mapping "
        "nor what is leased and mapped.",
        counts.misses > 0 and counts.misses_with_traces == 0,
        f"{counts.misses} misses, {counts.misses_with_traces} left a trace",
    )


def _limit_deferred(outcome: Outcome) -> Claim:
    deferred, limit = outcome.during("deferred"), outcome.limited.limit_bytes
    mapped = [outcome.limited.mapped_bytes, *outcome.limited_bytes(deferred)]
    return Claim(
        "limit_deferred",
        "A kvctl limit below what is in use is deferred; until it is met, nothing more is mapped.",
        bool(deferred) and min(mapped) > limit and mapped == sorted(mapped, reverse=True),
        f"limit {mib(limit)} with {mib(mapped[0])} mapped; deferred for {len(deferred)} steps",
    )


def _limit_applied(outcome: Outcome) -> Claim:
    applied, limit = outcome.during("applied"), outcome.limited.limit_bytes
    most = max(outcome.limited_bytes(applied), default=0)
    ordered = _steps_in_order(outcome.during("deferred"), applied)
    kept_waiting = any(sample.waiting for sample in applied)
    return Claim(
        "limit_applied",
        "As requests end the limit is applied by itself, and kept while others wait for memory.",
        bool(applied) and ordered and most <= limit and kept_waiting,
        f"applied for {len(applied)} steps, with at most {mib(most)} mapped; up to "
        f"{max((sample.waiting for sample in applied), default=0)} requests waiting",
    )


def _steps_in_order(earlier: Sequence[Sample], later: Sequence[Sample]) -> bool:
    steps = [sample.step for sample in (*earlier, *later)]
    return bool(earlier and later) and steps == sorted(steps)


def _limit_lifted(outcome: Outcome) -> Claim:
    lifted = outcome.during("lifted")
    most = max(outcome.limited_bytes(lifted), default=0)
    return Claim(
        "limit_lifted",
        "Once kvctl lifts the limit, the pool grows beyond it at once.",
        most > outcome.limited.limit_bytes,
        f"up to {mib(most)} afterwards, the limit was {mib(outcome.limited.limit_bytes)}",
    )


def _kvctl_agrees(outcome: Outcome) -> Claim:
    commands = (outcome.limited, outcome.lifted)
    shown = ", ".join(mib(command.kvctl_used_bytes) for command in commands)
    return Claim(
        "kvctl_agrees",
        "kvctl shows as used what is mapped.",
        all(command.kvctl_used_bytes == command.mapped_bytes for command in commands),
        f"kvctl shows {shown}; mapped "
        + ", ".join(mib(command.mapped_bytes) for command in commands),
    )


def _all_served(outcome: Outcome) -> Claim:
    counts = outcome.counts
    return Claim(
        "all_served",
        "Every request is served in the end.",
        0 < counts.requests == counts.finished,
        f"{counts.finished} of {counts.requests} requests; {counts.retracted} were retracted on "
        "the way",
    )


def _sizes_as_planned(savings: Savings) -> Claim:
    wrong = [size.pool for size in savings.sizes if size.planned_bytes != size.made_bytes]
    managed = sum(size.is_managed for size in savings.sizes)
    return Claim(
        "sizes_as_planned",
        "The pools of the whole model are as large as exact-id's plan says, to the byte.",
        managed > 1 and not wrong,
        f"{len(savings.sizes)} pools, {managed} of them managed, natively "
        f"{mib(savings.native_bytes)}" + (f"; different: {', '.join(wrong)}" if wrong else ""),
    )


def _loads_mapped_exactly(savings: Savings) -> Claim:
    wrong = [
        _named(level)
        for level in savings.levels
        if level.mapped_bytes != level.expected_bytes or level.managed_bytes != level.driver_bytes
    ]
    compared, damaged = savings.pages_compared, savings.pages_damaged
    return Claim(
        "loads_mapped_exactly",
        "Nor does the whole model map anything but the memory under live pages, at any load; and "
        "what was written stays.",
        bool(savings.levels) and not wrong and compared > 0 and damaged == 0,
        f"{len(savings.levels)} loads; {compared:,} pages compared, {damaged:,} damaged"
        + (f"; different {', '.join(wrong)}" if wrong else ""),
    )


def _less_than_natively(savings: Savings) -> Claim:
    native, levels = savings.native_bytes, savings.levels
    shares = [savings.taken_bytes(level) / native for level in levels if native]
    resident = all(0 < level.committed_bytes <= level.managed_bytes for level in levels)
    return Claim(
        "less_than_natively",
        "At every load the pools take less than natively, at a small one a fraction of it, and no "
        "more is resident than mapped.",
        bool(shares) and resident and max(shares) < 1 and shares[0] <= _SMALL_SHARE,
        "; ".join(
            f"{_named(level)}: {share:.0%} of {mib(native)}"
            for level, share in zip(levels, shares, strict=bool(native))
        ),
    )


def _miss_rolled_back(outcome: Outcome) -> Claim:
    misses = outcome.misses
    return Claim(
        "miss_rolled_back",
        "A request that misses after part of its memory was mapped leaves nothing: free lists in "
        "their order, mapping, leases and mapped pages are as before.",
        len(misses) > 1
        and all(each.missed and each.is_untouched and each.allocations > 0 for each in misses),
        "; ".join(
            f"{each.cause}: {each.allocations} allocations taken back, "
            f"{'nothing' if each.is_untouched else 'something'} changed"
            if each.missed
            else f"{each.cause}: {each.pages} pages did not miss"
            for each in misses
        ),
    )


def _same_request_succeeds(outcome: Outcome) -> Claim:
    misses = outcome.misses
    return Claim(
        "same_request_succeeds",
        "Once other requests have ended, the same request gets its pages, with the cause of the "
        "miss still there.",
        bool(misses) and all(each.succeeded and each.pages_freed for each in misses),
        "; ".join(
            f"{each.cause}: {each.pages} pages {'' if each.succeeded else 'not even '}"
            f"after {each.pages_freed} were freed"
            for each in misses
        ),
    )


def _named(level: Level) -> str:
    return f"{level.course} at {level.live_share:.0%}"


def _some(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:8]))
    return f"{shown}, ..." if len(steps) > 8 else shown
