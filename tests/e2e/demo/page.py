# SPDX-License-Identifier: Apache-2.0
"""report.html: one file that needs nothing else, no script and no network."""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from . import chart
from .report import Report

_TEMPLATE = "page.html.jinja"


def render(report: Report) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=PackageLoader("demo", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scenes = report.outcome.scenes
    return environment.get_template(_TEMPLATE).render(
        report=report,
        outcome=report.outcome,
        scenes=scenes,
        colours=Markup(chart.PALETTE.stylesheet()),
        sources_chart=Markup(chart.sources_chart(scenes)),
        times_chart=Markup(chart.times_chart(scenes)),
    )


def write(report: Report, path: Path) -> None:
    path.write_text(render(report), encoding="utf-8")
