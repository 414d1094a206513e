# SPDX-License-Identifier: Apache-2.0
"""Physical memory at a live load, drawn."""

from collections.abc import Sequence

from demo.drawing import Palette
from matplotlib.figure import Figure

from .saving import Moment

_MIB = 1 << 20
_LIGHT = {
    "ink": "#1f2430",
    "faint": "#d5d9e2",
    "native": "#7a8194",
    "swa": "#2563c9",
    "c4": "#0f7f74",
    "indexer": "#7b4fb0",
    "live": "#c2571a",
}
_DARK = _LIGHT | {
    "ink": "#e6e9f0",
    "faint": "#3a4152",
    "native": "#a0a8ba",
    "swa": "#5b97f5",
    "c4": "#2fc4b2",
    "indexer": "#b48be8",
    "live": "#e8874a",
}
_PALETTE = Palette(_LIGHT, _DARK)
_DESCRIPTION = (
    "physical memory of the managed pools at a live load that rises, goes on and falls, "
    "against native pools"
)


def picture(moments: Sequence[Moment]) -> str:
    """An SVG document that brings its own light and dark colours."""
    with _PALETTE.style():
        return _PALETTE.document(_figure(moments), _DESCRIPTION)


def _figure(moments: Sequence[Moment]) -> Figure:
    figure = Figure(figsize=(8.6, 3.6), layout="constrained")
    axes = figure.subplots()
    places = range(len(moments))
    bottom = [0.0] * len(moments)
    for number, holding in enumerate(moments[0].holdings):
        heights = [moment.holdings[number].mapped_bytes / _MIB for moment in moments]
        axes.bar(
            places, heights, 0.55, bottom=bottom, color=_PALETTE[holding.pool], label=holding.pool
        )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.scatter(
        places,
        [moment.live_bytes / _MIB for moment in moments],
        marker="_",
        s=900,
        color=_PALETTE["live"],
        label="live pages",
        zorder=3,
    )
    axes.axhline(moments[0].native_bytes / _MIB, color=_PALETTE["native"], label="native pools")
    axes.set_xticks(places, [f"{moment.load:.0%}\n{moment.history}" for moment in moments])
    axes.set_ylabel("MiB over all layers")
    axes.set_title("Physical memory at a live load", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_PALETTE["faint"])
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure
