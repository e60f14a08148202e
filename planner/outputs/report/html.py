"""Write a report as one HTML file with its style and charts inside, so that it loads nothing."""

from __future__ import annotations

from dataclasses import dataclass

from django.template.loader import render_to_string
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from planner.outputs.report.charts import (
    SIZE,
    Box,
    Drawing,
    Path,
    Text,
    drawn,
)
from planner.outputs.report.values import (
    Chart,
    Head,
    Report,
    Section,
    Table,
)


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table with its values as text."""

    heads: tuple[Head, ...]
    rows: tuple[tuple[bool, tuple[tuple[str, bool], ...]], ...]  # marked; text and numeric by cell


@dataclass(frozen=True, slots=True)
class Shown:
    """A section with its charts as SVG and its values as text."""

    section: Section
    charts: tuple[tuple[Chart, SafeString], ...]
    table: ShownTable | None


def html_of(report: Report) -> str:
    """Return a report as HTML."""
    shown = [
        Shown(
            section,
            tuple((chart, svg_of(drawn(chart, report.clock), chart)) for chart in section.charts),
            _written(section.table, report.clock) if section.table else None,
        )
        for section in report.sections
    ]
    return render_to_string("reports/report.html", {"report": report, "sections": shown})


def _written(table: Table, clock: str) -> ShownTable:
    """Return a table with its values as text."""
    rows = tuple(
        (
            i in table.marked,
            tuple(
                (head.written(value, clock), head.numeric)
                for head, value in zip(table.heads, row, strict=True)
            ),
        )
        for i, row in enumerate(table.rows)
    )
    return ShownTable(table.heads, rows)


def svg_of(drawing: Drawing, chart: Chart) -> SafeString:
    """Return a drawing as SVG."""
    parts = format_html_join("", "{}", ((_part(part),) for part in drawing.parts))
    return format_html(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" font-size="{}">{}</svg>',
        f"{drawing.width:g}", f"{drawing.height:g}", f"{chart.title}, {chart.unit}. {chart.words}",
        f"{SIZE:g}", parts,
    )  # fmt: skip


def _part(part: Path | Box | Text) -> SafeString:
    """Return a shape as SVG."""
    match part:
        case Path():
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in part.points)
            return format_html(
                '<polyline points="{}" fill="none" stroke="{}" stroke-width="{}"{}/>',
                points, part.colour, f"{part.width:g}",
                SafeString(' stroke-dasharray="5 3"' if part.dashed else ""),
            )  # fmt: skip
        case Box():
            return format_html(
                '<rect x="{}" y="{}" width="{}" height="{}" fill="{}"/>',
                f"{part.x:.1f}", f"{part.y:.1f}", f"{part.width:.1f}", f"{part.height:.1f}",
                part.colour,
            )  # fmt: skip
        case Text():
            return format_html(
                '<text x="{}" y="{}" text-anchor="{}" fill="{}">{}</text>',
                f"{part.x:.1f}", f"{part.y:.1f}", part.anchor, part.colour, part.text,
            )  # fmt: skip
