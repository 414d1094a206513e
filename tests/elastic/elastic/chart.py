# SPDX-License-Identifier: Apache-2.0
"""Memory and requests over the steps of the load."""

from collections.abc import Sequence

from demo.drawing import Palette
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from .outcome import Outcome, Phase, Sample

_SIZE_INCHES = (8.6, 5.4)
_MIB = 1 << 20
_HEADROOM = 1.13

_LIGHT = {
    "ink": "#1f2430",
    "faint": "#d5d9e2",
    "native": "#7a8194",
    "mapped": "#2563c9",
    "resident": "#0f7f74",
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
    "mapped": "#5b97f5",
    "resident": "#2fc4b2",
    "live": "#e8874a",
    "limit": "#ff7b72",
    "running": "#b48be8",
    "waiting": "#e0b04a",
}

PALETTE = Palette(_LIGHT, _DARK)
_DESCRIPTION = (
    "mapped and resident memory of the sliding-window pool, and its live pages, over the steps of "
    "the load, against the native reservation and under a limit; and requests running and waiting"
)
_SHADED: tuple[Phase, ...] = ("deferred", "applied")


def memory_chart(outcome: Outcome) -> str:
    """The chart as an SVG element."""
    with PALETTE.style():
        return PALETTE.element(_figure(outcome), _DESCRIPTION)


def picture(outcome: Outcome) -> str:
    """The chart as one SVG document that brings its own light and dark colours."""
    with PALETTE.style():
        figure = _figure(outcome)
        figure.suptitle(
            "A pool's memory follows its load, and a limit set with kvctl",
            x=0.01,
            ha="left",
            fontsize=11,
            fontweight="bold",
        )
        return PALETTE.document(figure, _DESCRIPTION)


def _figure(outcome: Outcome) -> Figure:
    figure = Figure(figsize=_SIZE_INCHES, layout=ConstrainedLayoutEngine(hspace=0.05))
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3.2, 1))
    _draw_memory(upper, outcome)
    _draw_requests(lower, outcome)
    for axes in (upper, lower):
        _shade(axes, outcome)
        _finish(axes)
    upper.set_xlim(0, outcome.samples[-1].step)
    lower.set_xlabel(
        f"step; in each one every running request decodes {outcome.step_tokens} tokens"
    )
    return figure


def _draw_memory(axes: Axes, outcome: Outcome) -> None:
    samples, pool = outcome.samples, outcome.pool
    steps = [sample.step for sample in samples]
    mapped = [sample.mapped_bytes / _MIB for sample in samples]
    start = outcome.start_committed_bytes
    resident = [(sample.committed_bytes - start) / _MIB for sample in samples]
    live = [sample.live_pages * pool.page_bytes / _MIB for sample in samples]
    native = pool.native_bytes / _MIB
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
    axes.fill_between(steps, mapped, step="post", color=PALETTE["mapped"], alpha=0.16, linewidth=0)
    axes.step(steps, mapped, where="post", color=PALETTE["mapped"], linewidth=1.9, label="mapped")
    axes.step(
        steps,
        resident,
        where="post",
        color=PALETTE["resident"],
        linewidth=1.1,
        linestyle=(0, (2, 1.4)),
        label="resident, as the kernel counts",
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
    axes.set_ylim(0, native * _HEADROOM)
    axes.set_ylabel("MiB, all layers")
    _legend(axes)


def _draw_requests(axes: Axes, outcome: Outcome) -> None:
    steps = [sample.step for sample in outcome.samples]
    for name in ("running", "waiting"):
        counts = [getattr(sample, name) for sample in outcome.samples]
        axes.step(steps, counts, where="post", color=PALETTE[name], linewidth=1.4, label=name)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("requests")
    _legend(axes)


def _shade(axes: Axes, outcome: Outcome) -> None:
    """The spans of the limit, named in the upper chart."""
    for phase in _SHADED:
        span = _span(outcome.during(phase))
        if span is None:
            continue
        axes.axvspan(*span, color=PALETTE[phase], alpha=0.22, linewidth=0)
        if axes.get_ylabel() != "requests":
            axes.annotate(
                phase,
                ((span[0] + span[1]) / 2, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, -34),
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
        ncols=4,
        frameon=False,
        borderpad=0,
        borderaxespad=0.2,
        handlelength=1.6,
        columnspacing=1.4,
        handletextpad=0.5,
    )
