# SPDX-License-Identifier: Apache-2.0
"""Memory and requests over the steps of the load, and memory of a whole model at several loads."""

from collections.abc import Sequence

from demo.drawing import Palette
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from .outcome import Outcome, Phase, Sample
from .savings import Savings

_SIZE_INCHES = (8.6, 6.6)
_SAVINGS_SIZE_INCHES = (8.6, 2.9)
_MIB = 1 << 20
_HEADROOM = 1.13

_LIGHT = {
    "ink": "#1f2430",
    "faint": "#d5d9e2",
    "native": "#7a8194",
    "swa": "#2563c9",
    "c4": "#0f9488",
    "indexer": "#a35bd1",
    "c128": "#8a6d3b",
    "resident": "#1f2430",
    "live": "#c2571a",
    "limit": "#c02626",
    "deferred": "#f5c542",
    "applied": "#7fb88f",
    "running": "#7b4fb0",
    "waiting": "#c28a1a",
}
_DARK = _LIGHT | {
    "ink": "#e6e9f0",
    "faint": "#3a4152",
    "native": "#a0a8ba",
    "swa": "#5b97f5",
    "c4": "#2fc4b2",
    "indexer": "#c58cf0",
    "c128": "#c9a86a",
    "resident": "#e6e9f0",
    "live": "#e8874a",
    "limit": "#ff7b72",
    "running": "#b48be8",
    "waiting": "#e0b04a",
}

PALETTE = Palette(_LIGHT, _DARK)
_TITLES = {"swa": "sliding window", "c4": "C4 KV", "indexer": "indexer", "c128": "C128, native"}
_DESCRIPTION = (
    "memory mapped for the sliding-window, C4 and indexer pools over the steps of the load, what "
    "of it is resident, and the bytes of live pages, against the native reservation; the "
    "sliding-window pool under its limit; and requests running and waiting"
)
_SAVINGS_DESCRIPTION = "memory of every pool of a whole model natively and at five loads"
_SHADED: tuple[Phase, ...] = ("deferred", "applied")


def memory_chart(outcome: Outcome) -> str:
    """The chart of the load in waves as an SVG element."""
    with PALETTE.style():
        return PALETTE.element(_figure(outcome), _DESCRIPTION)


def savings_chart(savings: Savings) -> str:
    """The chart of the whole model as an SVG element."""
    with PALETTE.style():
        return PALETTE.element(_savings_figure(savings), _SAVINGS_DESCRIPTION)


def picture(outcome: Outcome) -> str:
    """The chart of the load as one SVG document that brings its own light and dark colours."""
    with PALETTE.style():
        figure = _figure(outcome)
        figure.suptitle(
            "Memory of DeepSeek-V4 pools follows the load, and a limit set with kvctl",
            x=0.01,
            ha="left",
            fontsize=11,
            fontweight="bold",
        )
        return PALETTE.document(figure, _DESCRIPTION)


def _figure(outcome: Outcome) -> Figure:
    figure = Figure(figsize=_SIZE_INCHES, layout=ConstrainedLayoutEngine(hspace=0.05))
    upper, middle, lower = figure.subplots(3, sharex=True, height_ratios=(3, 1.5, 1.1))
    _draw_memory(upper, outcome)
    _draw_limited(middle, outcome)
    _draw_requests(lower, outcome)
    for axes in (upper, middle, lower):
        _shade(axes, outcome, are_named=axes is middle)
        _finish(axes)
    upper.set_xlim(0, outcome.samples[-1].step)
    lower.set_xlabel(
        f"step; in each one every running request decodes {outcome.step_tokens} tokens"
    )
    return figure


def _draw_memory(axes: Axes, outcome: Outcome) -> None:
    samples = outcome.samples
    steps = [sample.step for sample in samples]
    start = outcome.start_committed_bytes
    resident = [(sample.committed_bytes - start) / _MIB for sample in samples]
    live = [
        sum(
            sample.pools[name].live_pages * pool.page_bytes / _MIB
            for name, pool in outcome.pools.items()
        )
        for sample in samples
    ]
    native = outcome.native_bytes / _MIB
    axes.axhline(native, color=PALETTE["native"], linestyle=(0, (5, 3)), linewidth=1.6)
    axes.annotate(
        f"native reservation, {native:.0f} MiB",
        (steps[-1], native),
        xytext=(-2, 4),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=PALETTE["native"],
    )
    below = [0.0] * len(samples)
    for name in outcome.pools:
        top = [
            under + sample.pools[name].mapped_bytes / _MIB
            for under, sample in zip(below, samples, strict=True)
        ]
        axes.fill_between(
            steps,
            below,
            top,
            step="post",
            color=PALETTE[name],
            alpha=0.55,
            linewidth=0,
            label=f"{_TITLES[name]}, mapped",
        )
        below = top
    axes.step(
        steps,
        resident,
        where="post",
        color=PALETTE["resident"],
        linewidth=1.1,
        linestyle=(0, (2, 1.4)),
        label="resident",
    )
    axes.step(steps, live, where="post", color=PALETTE["live"], linewidth=1.4, label="live pages")
    axes.set_ylim(0, native * _HEADROOM)
    axes.set_ylabel("MiB, all pools")
    _legend(axes)


def _draw_limited(axes: Axes, outcome: Outcome) -> None:
    samples, name = outcome.samples, outcome.limited_pool
    pool = outcome.pools[name]
    steps = [sample.step for sample in samples]
    mapped = [each / _MIB for each in outcome.limited_bytes(samples)]
    live = [sample.pools[name].live_pages * pool.page_bytes / _MIB for sample in samples]
    axes.step(
        steps,
        mapped,
        where="post",
        color=PALETTE[name],
        linewidth=1.9,
        label=f"{_TITLES[name]} alone, mapped",
    )
    axes.step(steps, live, where="post", color=PALETTE["live"], linewidth=1.4, label="live pages")
    limit = outcome.limited.limit_bytes / _MIB
    axes.plot(
        [outcome.limited.step, outcome.lifted.step],
        [limit, limit],
        color=PALETTE["limit"],
        linewidth=2,
        label=f"kvctl limit, {limit:.0f} MiB",
    )
    axes.set_ylim(0, max(mapped) * 1.25)
    axes.set_ylabel("MiB")
    _legend(axes)


def _savings_figure(savings: Savings) -> Figure:
    figure = Figure(figsize=_SAVINGS_SIZE_INCHES, layout=ConstrainedLayoutEngine())
    axes = figure.subplots()
    names = ["natively", *(f"{each.course}, {each.live_share:.0%}" for each in savings.levels)]
    left = [0.0] * len(names)
    for size in savings.sizes:
        taken = [size.planned_bytes] + [
            level.mapped_bytes.get(size.pool, size.planned_bytes) for level in savings.levels
        ]
        widths = [each / _MIB for each in taken]
        axes.barh(
            names,
            widths,
            left=left,
            height=0.62,
            color=PALETTE[size.pool],
            label=_TITLES[size.pool],
        )
        left = [each + width for each, width in zip(left, widths, strict=True)]
    for name, end in zip(names, left, strict=True):
        axes.annotate(
            f"{end:,.0f} MiB" + ("" if name == names[0] else f", {end / left[0]:.0%}"),
            (end, name),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=PALETTE["ink"],
        )
    axes.invert_yaxis()
    axes.set_xlim(0, left[0] * _HEADROOM)
    axes.set_xlabel("MiB over all layers, by full pages in use")
    _finish(axes)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=PALETTE["faint"], linewidth=0.8)
    _legend(axes)
    return figure


def _draw_requests(axes: Axes, outcome: Outcome) -> None:
    steps = [sample.step for sample in outcome.samples]
    for name in ("running", "waiting"):
        counts = [getattr(sample, name) for sample in outcome.samples]
        axes.step(steps, counts, where="post", color=PALETTE[name], linewidth=1.4, label=name)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("requests")
    _legend(axes)


def _shade(axes: Axes, outcome: Outcome, *, are_named: bool) -> None:
    """The spans of the limit."""
    for phase in _SHADED:
        span = _span(outcome.during(phase))
        if span is None:
            continue
        axes.axvspan(*span, color=PALETTE[phase], alpha=0.22, linewidth=0)
        if are_named:
            axes.annotate(
                phase,
                ((span[0] + span[1]) / 2, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, -4),
                textcoords="offset points",
                ha="center",
                va="top",
                fontweight="bold",
            )


def _span(samples: Sequence[Sample]) -> tuple[int, int] | None:
    return (samples[0].step, samples[-1].step + 1) if samples else None


def _finish(axes: Axes) -> None:
    axes.grid(axis="y", color=PALETTE["faint"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _legend(axes: Axes) -> None:
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=5,
        frameon=False,
        borderpad=0,
        borderaxespad=0.2,
        handlelength=1.6,
        columnspacing=1.4,
        handletextpad=0.5,
    )
