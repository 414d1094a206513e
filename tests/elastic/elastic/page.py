# SPDX-License-Identifier: Apache-2.0
"""report.html: one file that needs nothing else, no script and no network."""

from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from . import chart
from .report import Report

_TEMPLATE = "elastic.html.jinja"


def render(report: Report) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("elastic", "."), PackageLoader("demo", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE).render(
        report=report,
        outcome=report.outcome,
        mib=1 << 20,
        colours=Markup(chart.PALETTE.stylesheet()),
        memory_chart=Markup(chart.memory_chart(report.outcome)),
        savings_chart=Markup(chart.savings_chart(report.outcome.savings)),
        savings=report.outcome.savings,
    )


def write(report: Report, path: Path) -> None:
    path.write_text(render(report), encoding="utf-8")
