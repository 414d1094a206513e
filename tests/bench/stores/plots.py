# SPDX-License-Identifier: Apache-2.0
"""How fast each contender is over page sizes, and how long it takes over numbers of pages."""

from collections.abc import Sequence

from demo.drawing import Palette
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .grid import Point, size
from .samples import Operation, Results, Series

_WIDTH_INCHES, _HEIGHT_INCHES = 9.4, 4.6
_MARKERS = "os^DvxP<>hpd1*X"
_COLOURS = (
    ("memcpy local", "#7a8194", "#9aa1b4"),
    ("kvcr local", "#0f7f74", "#17948a"),
    ("kvcr peer", "#2563c9", "#3f7de0"),
    ("raw kvcr local", "#7fb5ae", "#5f958e"),
    ("raw kvcr peer", "#8fb0e4", "#6f90c4"),
    ("nixl write", "#1f2430", "#e6e9f0"),
    ("ucxx", "#7b4fb0", "#9166c7"),
    ("file local", "#8a6d1a", "#b8942f"),
    ("nixl posix local", "#b0772a", "#cf8f3c"),
    ("mooncake local", "#c2571a", "#cf6428"),
    ("mooncake peer", "#b3261e", "#dc6a5f"),
    ("kvcr checked local", "#5b8c5a", "#86b585"),
    ("kvcr checked peer", "#5a6f8c", "#8aa0bd"),
    ("kvcr tuned local", "#0b5c36", "#35b377"),
    ("kvcr tuned peer", "#163a8a", "#7aa6ff"),
)


def _variable(contender: str) -> str:
    return contender.replace(",", "").replace(" ", "-")


_INK = {"ink": "#1f2430", "faint": "#d5d9e2"}
_DARK_INK = {"ink": "#e6e9f0", "faint": "#3a4152"}
PALETTE = Palette(
    _INK | {_variable(name): light for name, light, _ in _COLOURS},
    _DARK_INK | {_variable(name): dark for name, _, dark in _COLOURS},
)


def speeds(results: Results) -> str:
    """GB/s of `set` and `get` over page sizes, as many pages at a time as there are; an SVG."""
    with PALETTE.style():
        figure, panels = _figure(2)
        operations: tuple[Operation, ...] = ("set", "get")
        for axes, operation in zip(panels, operations, strict=True):
            _draw_speeds(axes, results, operation)
            axes.set_title(operation, loc="left")
        panels[0].set_ylabel("GB/s, median of warm calls")
        return _finished(figure, panels, "gigabytes per second of each contender by page size")


def latencies(results: Results) -> str:
    """Milliseconds of `get` and `exists` over numbers of the smallest pages; an SVG."""
    with PALETTE.style():
        figure, panels = _figure(2)
        smallest = min(each.point.page_bytes for each in results.series)
        operations: tuple[Operation, ...] = ("get", "exists")
        for axes, operation in zip(panels, operations, strict=True):
            _draw_times(axes, results, operation, smallest)
            axes.set_title(f"{operation}, pages of {size(smallest)}", loc="left")
        panels[0].set_ylabel("milliseconds, median of warm calls")
        return _finished(figure, panels, "milliseconds of each contender by number of pages")


def _draw_speeds(axes: Axes, results: Results, operation: Operation) -> None:
    most: dict[int, Point] = {}
    for point in sorted({each.point for each in results.series}):
        most[point.page_bytes] = point
    for contender in _drawn(results):
        found = [results.find(contender, point, operation) for point in most.values()]
        drawn = [each for each in found if each is not None]
        speeds_ = [each.gigabytes_per_second or 0.0 for each in drawn]
        _line(axes, contender, [each.point.page_bytes for each in drawn], speeds_)
    ticks = list(most)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{size(each)}\nx {most[each].pages:,}" for each in ticks])


def _draw_times(axes: Axes, results: Results, operation: Operation, page_bytes: int) -> None:
    for contender in _drawn(results):
        drawn: list[Series] = sorted(
            (
                each
                for each in results.series
                if (each.contender, each.operation, each.state) == (contender, operation, "warm")
                and each.point.page_bytes == page_bytes
            ),
            key=lambda each: each.point.pages,
        )
        times = [each.p50_seconds * 1000 for each in drawn]
        _line(axes, contender, [each.point.pages for each in drawn], times)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("pages")


def _drawn(results: Results) -> list[str]:
    """The contenders that have a colour; those with a sidecar move more bytes than others."""
    return [name for name, _, _ in _COLOURS if name in results.contenders]


def _line(axes: Axes, contender: str, x: Sequence[float], y: Sequence[float]) -> None:
    if not x:
        return
    names = [name for name, _, _ in _COLOURS]
    axes.plot(
        x,
        y,
        label=contender,
        color=PALETTE[_variable(contender)],
        marker=_MARKERS[names.index(contender)],
        markersize=4.5,
        linewidth=1.4,
    )


def _figure(panels: int) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")
    return figure, list(figure.subplots(1, panels))


def _finished(figure: Figure, panels: Sequence[Axes], description: str) -> str:
    for axes in panels:
        if axes.lines:
            axes.set_yscale("log")
        axes.grid(color=PALETTE["faint"], linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    shown = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=5, frameon=False)
    return PALETTE.document(figure, description)
