# SPDX-License-Identifier: Apache-2.0
"""The figures: for the terminal, for programs, and for the documentation."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .grid import HEADLINE, MANY, Point
from .limits import Limit, limits, missed_goals
from .samples import Operation, Results, Series

_COLUMNS = (
    "contender",
    "page_bytes",
    "pages",
    "operation",
    "state",
    "calls",
    "p50_seconds",
    "p99_seconds",
    "gigabytes_per_second",
)
_Rows = list[tuple[str, ...]]
_Cell = Callable[[Series | None], str]
_MOVING: tuple[Operation, ...] = ("set", "get")


def show(console: Console, results: Results, products: Sequence[str]) -> None:
    """The headline's point, the limits of each product, and who is missing."""
    console.print(_table(f"{HEADLINE}, warm", *headline(results)))
    for product in products:
        found = limits(results, product)
        console.print(_table(f"limits, {product}", *verdicts(found)))
        if missed := missed_goals(found):
            console.print(f"{product} missed: {'; '.join(missed)}", style="red")
    for contender, reason in results.not_run.items():
        console.print(f"{contender} was not run: {reason}", markup=False, style="yellow")
    for damage in results.damaged:
        console.print(damage, markup=False, style="red")


def write_csv(path: Path, results: Results) -> None:
    """One row per series; times in seconds."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(_row(each) for each in results.series)


def write_json(path: Path, results: Results, products: Sequence[str]) -> None:
    """Everything, with each call's seconds."""
    document = {
        "machine": results.machine,
        "series": [{**_row(each), "seconds": each.seconds} for each in results.series],
        "verified_points": results.verified,
        "damaged": results.damaged,
        "not_run": results.not_run,
        "limits": {
            product: [
                {
                    "goal": limit.goal,
                    "against": limit.against,
                    "seen": limit.seen,
                    "wanted": limit.wanted,
                    "unit": limit.unit,
                    "verdict": limit.verdict,
                }
                for limit in limits(results, product)
            ]
            for product in products
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def markdown(results: Results, products: Sequence[str]) -> str:
    """The summary as a part of a page; made by the benchmark, not by hand."""
    lines = ["<!-- Written by `nox -s bench-kvcr -- --docs docs`; not edited by hand. -->", ""]
    facts = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    lines += [f"Measured on: {facts}.", ""]
    lines += [f"### {HEADLINE}", "", "Warm calls, and the median of the first after a start.", ""]
    lines += [*_markdown_table(*headline(results)), ""]
    for product in products:
        table = _markdown_table(*verdicts(limits(results, product)))
        lines += [f"### Goals, {product}", "", *table, ""]
    lines += ["### Other sizes", "", "GB/s of the median warm call, with the most pages.", ""]
    for operation in _MOVING:
        lines += [*_markdown_table(*speeds(results, operation)), ""]
    lines += ["### Queries", "", "Milliseconds of the median warm `exists`.", ""]
    lines += [*_markdown_table(*queries(results)), ""]
    if results.not_run:
        lines += ["Not run:", ""]
        lines += [f"- {name}: {reason}" for name, reason in results.not_run.items()] + [""]
    return "\n".join(lines)


def headline(results: Results) -> tuple[tuple[str, ...], _Rows]:
    """Set and get of each contender at the headline's point."""
    heads = ["contender"]
    for operation in _MOVING:
        heads += [f"{operation} GB/s", "p50 ms", "p99 ms", "first ms"]
    rows: _Rows = []
    for contender in results.contenders:
        row = [contender]
        for operation in _MOVING:
            warm = results.find(contender, HEADLINE, operation)
            cold = results.find(contender, HEADLINE, operation, "cold")
            row += [
                _speed(warm),
                _milliseconds(warm.p50_seconds if warm else None),
                _milliseconds(warm.p99_seconds if warm else None),
                _milliseconds(cold.p50_seconds if cold else None),
            ]
        if any(row[1:]):
            gets = results.find(contender, HEADLINE, "get")
            rows.append((*row, str(len(gets.seconds)) if gets else ""))
    return (*heads, "gets"), rows


def speeds(results: Results, operation: Operation) -> tuple[tuple[str, ...], _Rows]:
    """GB/s of one operation: a row for each contender, a column for each page size."""
    most = {point.page_bytes: point for point in _points(results)}
    return _over_grid(results, operation, _speed, list(most.values()))


def queries(results: Results) -> tuple[tuple[str, ...], _Rows]:
    """Milliseconds of `exists` at the points of the smallest pages."""
    points = [point for point in _points(results) if point.page_bytes == MANY.page_bytes]
    return _over_grid(
        results, "exists", lambda each: _milliseconds(each.p50_seconds if each else None), points
    )


def verdicts(found: Iterable[Limit]) -> tuple[tuple[str, ...], _Rows]:
    """One row per limit."""
    rows: _Rows = []
    for limit in found:
        seen = "" if limit.seen is None else f"{limit.seen:.2f} {limit.unit}"
        bound = "at most" if limit.is_ceiling else "at least"
        wanted = f"{bound} {limit.wanted:g} {limit.unit}"
        rows.append((limit.goal, limit.against, seen, wanted, limit.verdict))
    return ("goal", "against", "seen", "wanted", "verdict"), rows


def _over_grid(
    results: Results,
    operation: Operation,
    cell: _Cell,
    points: Sequence[Point],
) -> tuple[tuple[str, ...], _Rows]:
    rows: _Rows = []
    for contender in results.contenders:
        cells = [cell(results.find(contender, point, operation)) for point in points]
        if any(cells):
            rows.append((contender, *cells))
    return (operation, *map(str, points)), rows


def _points(results: Results) -> list[Point]:
    return sorted({each.point for each in results.series})


def _speed(series: Series | None) -> str:
    speed = series.gigabytes_per_second if series else None
    return "" if speed is None else f"{speed:.3g}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.3g}"


def _row(series: Series) -> Mapping[str, object]:
    speed = series.gigabytes_per_second
    values = (
        series.contender,
        series.point.page_bytes,
        series.point.pages,
        series.operation,
        series.state,
        len(series.seconds),
        series.p50_seconds,
        series.p99_seconds,
        speed,
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head)
    for row in rows:
        table.add_row(*row, style="red" if row[-1] == "missed" else None)
    return table


def _markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]
