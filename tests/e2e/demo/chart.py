# SPDX-License-Identifier: Apache-2.0
"""The two charts: where tokens came from, and how long it took."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from .drawing import Palette
from .scene import Scene

_WIDTH_INCHES = 8.6
_ROW_INCHES = 0.42
_FRAME_INCHES = 1.0
_LABELLED_SHARE = 0.075
"""A bar's part carries its number if it is at least this share of the axis."""

_LIGHT = {
    "ink": "#1f2430",
    "faint": "#d5d9e2",
    "on-bar": "#ffffff",
    "computed": "#c2571a",
    "device": "#7a8194",
    "host": "#7b4fb0",
    "own-dram": "#0f7f74",
    "peer-dram": "#2563c9",
    "restore": "#2563c9",
    "prefill": "#c2571a",
    "decode": "#667085",
}
_DARK = _LIGHT | {
    "ink": "#e6e9f0",
    "faint": "#3a4152",
    "own-dram": "#17948a",
    "peer-dram": "#3f7de0",
}
_DARK |= {
    "restore": _DARK["peer-dram"],
    "host": "#9166c7",
    "computed": "#cf6428",
    "prefill": "#cf6428",
}

PALETTE = Palette(_LIGHT, _DARK)


@dataclass(frozen=True)
class _Part:
    label: str
    colour: str
    values: tuple[float, ...]


def sources_chart(scenes: Sequence[Scene]) -> str:
    """Where each request's tokens came from; an SVG element."""
    with PALETTE.style():
        figure = _figure(len(scenes))
        _draw_sources(figure.subplots(), scenes)
        return PALETTE.element(figure, "where each request's tokens came from")


def times_chart(scenes: Sequence[Scene]) -> str:
    """How long each part of each request took; an SVG element."""
    with PALETTE.style():
        figure = _figure(len(scenes))
        _draw_times(figure.subplots(), scenes)
        return PALETTE.element(figure, "how long each part of each request took")


def picture(scenes: Sequence[Scene]) -> str:
    """Both charts as one SVG document that brings its own light and dark colours."""
    with PALETTE.style():
        figure = _figure(2 * len(scenes) + 3)
        upper, lower = figure.subplots(2)
        _draw_sources(upper, scenes)
        _draw_times(lower, scenes)
        for axes, title in (
            (upper, "Where each request's tokens came from"),
            (lower, "How long each part took"),
        ):
            axes.set_title(title, loc="left", pad=26)
        return PALETTE.document(
            figure, "where each request's tokens came from, and how long each part took"
        )


def _draw_sources(axes: Axes, scenes: Sequence[Scene]) -> None:
    counts = [scene.answer.sources for scene in scenes]
    parts = [
        _Part("computed", "computed", tuple(each.computed for each in counts)),
        _Part("device", "device", tuple(each.device for each in counts)),
        _Part("host pool", "host", tuple(each.host for each in counts)),
        _Part("own KVCR DRAM", "own-dram", tuple(each.own_dram for each in counts)),
        _Part("peer's KVCR DRAM", "peer-dram", tuple(each.peer_dram for each in counts)),
    ]
    _draw(axes, scenes, parts)
    axes.set_xlabel("tokens, as SGLang counted them")


def _draw_times(axes: Axes, scenes: Sequence[Scene]) -> None:
    times = [scene.answer.timing for scene in scenes]
    parts = [
        _Part("restore", "restore", tuple(each.restore_s * 1000 for each in times)),
        _Part("rest until the first token", "prefill", tuple(t.prefill_s * 1000 for t in times)),
        _Part("decode", "decode", tuple(each.decode_s * 1000 for each in times)),
    ]
    _draw(axes, scenes, parts)
    axes.set_xlabel("milliseconds")


def _draw(axes: Axes, scenes: Sequence[Scene], parts: Sequence[_Part]) -> None:
    rows = range(len(scenes))
    starts = [0.0] * len(scenes)
    longest = max(sum(part.values[row] for part in parts) for row in rows)
    for part in parts:
        if not any(part.values):
            continue
        axes.barh(
            rows,
            part.values,
            left=starts,
            height=0.66,
            color=PALETTE[part.colour],
            label=part.label,
        )
        for row in rows:
            if part.values[row] >= _LABELLED_SHARE * longest:
                centre = starts[row] + part.values[row] / 2
                axes.text(
                    centre,
                    row,
                    f"{part.values[row]:.0f}",
                    ha="center",
                    va="center",
                    color=PALETTE["on-bar"],
                    fontsize=8.5,
                )
        starts = [start + value for start, value in zip(starts, part.values, strict=True)]
    axes.set_yticks(rows, [f"{scene.title} · {scene.replica}" for scene in scenes])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.01 or 1)
    axes.grid(axis="x", color=PALETTE["faint"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=5,
        frameon=False,
        borderpad=0,
        borderaxespad=0.2,
        handlelength=1,
        handleheight=1,
        columnspacing=1.4,
        handletextpad=0.5,
    )


def _figure(rows: int) -> Figure:
    size = (_WIDTH_INCHES, _FRAME_INCHES + _ROW_INCHES * rows)
    return Figure(figsize=size, layout=ConstrainedLayoutEngine(hspace=0.06))
