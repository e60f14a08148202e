"""Write a report as HTML: its blocks for a page, or one file that loads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.template.loader import render_to_string
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString

from planner.domain.report import Block, Chart, Facts, Form, Head, Note, Report, Section, Table
from planner.outputs.cover import Cover
from planner.outputs.render.document import document_of
from planner.outputs.render.drawing import SIZE, Box, Drawing, Path, Text, draw_chart
from planner.outputs.render.figure import Figure
from planner.outputs.render.plotly import figure_of

COLUMNS = 4  # most columns of a table on a phone; rows of wider tables are cards there
WIDE = {1: "", 2: "wrap"}  # CSS class of a text column by its relative width; above: "wide"
SHADES = 8  # classes heat-1 to heat-8 of the style sheet


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A table as its template needs it; a template per cell would take most of a page's time."""

    table: Table
    heads: tuple[tuple[Head, str], ...]  # with their CSS classes
    rows: SafeString
    live: bool  # whether the page has scripts, so that a button can copy the table
    cards: bool  # on a phone its rows are cards


@dataclass(frozen=True, slots=True)
class ShownBlock:
    """A block as its template needs it; a chart has a ``figure`` for the script, or an ``svg``."""

    kind: str  # facts, note, table or chart
    block: Block
    element: str  # its HTML id
    table: ShownTable | None = None
    figure: Figure | None = None
    svg: SafeString | None = None


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A section with its blocks."""

    section: Section
    blocks: tuple[ShownBlock, ...]


def display_sections(report: Report, *, live: bool) -> tuple[ShownSection, ...]:
    """Return the sections of a report in their order, as their templates need them.

    With ``live``, charts are data that the page's script draws; otherwise they are SVG.
    """
    sections = sorted(report.sections, key=lambda section: section.order)
    return _display_sections(sections, report.clock, live)


def _display_sections(
    sections: Sequence[Section], clock: str, live: bool
) -> tuple[ShownSection, ...]:
    """Return sections as templates need them; ``live``: the page's script draws charts."""
    shown_sections = []
    for section in sections:
        blocks = [
            _display_block(block, f"{section.anchor}-{number}", clock, live)
            for number, block in enumerate(section.blocks, start=1)
        ]
        shown_sections.append(ShownSection(section, tuple(blocks)))
    return tuple(shown_sections)


def display_charts(
    report: Report, *, live: bool, prefix: str = "over-time"
) -> tuple[ShownBlock, ...]:
    """Return a report's top charts, whose HTML ids begin with ``prefix``."""
    return tuple(
        _display_block(chart, f"{prefix}-{i}", report.clock, live)
        for i, chart in enumerate(report.charts, start=1)
    )


def html_of(report: Report, cover: Cover) -> str:
    """Return a report as one HTML file."""
    document = document_of(report)
    context = {
        "report": report, "cover": cover, "charts": display_charts(report, live=False),
        "warnings": document.warnings,
        "decision": _display_sections(document.decision, report.clock, live=False),
        "appendix": _display_sections(document.appendix, report.clock, live=False),
    }  # fmt: skip
    return render_to_string("reports/report.html", context)


def _display_block(block: Block, element: str, clock: str, live: bool) -> ShownBlock:
    """Return a block as its template needs it.

    ``element`` is its HTML id. ``clock`` is "utc", or "relative" for a trace without dates.
    ``live`` is that of ``_display_sections``.
    """
    match block:
        case Table():
            return ShownBlock("table", block, element, table=display_table(block, clock, live))
        case Chart() if live:
            return ShownBlock("chart", block, element, figure=figure_of(block, clock))
        case Chart():
            return ShownBlock("chart", block, element, svg=svg_of(draw_chart(block, clock), block))
        case Facts():
            return ShownBlock("facts", block, element)
        case Note():
            return ShownBlock("note", block, element)


def display_table(table: Table, clock: str, live: bool) -> ShownTable:
    """Return a table as its template needs it; ``live``: the page has scripts.

    On such a page, a narrow screen shows the rows of a wide table as cards, in which each cell has
    its head as a label.
    """
    shown_heads = table.display_heads
    column_classes = [_column_class(head) for head in table.heads]
    cards = live and len(table.heads) > COLUMNS and not table.shades
    labels = [format_html(' data-label="{}"', head.full) if cards else "" for head in shown_heads]
    rows = []
    for row, texts in enumerate(table.texts(clock)):
        rows.append('<tr class="marked">' if row in table.marked else "<tr>")
        for column, text in enumerate(texts):
            classes = column_classes[column] + _cell_classes(table, row, column)
            rows.append(f'<td class="{classes}"{labels[column]}>{escape(text)}</td>')
        rows.append("</tr>")
    heads = tuple(zip(shown_heads, column_classes, strict=True))
    return ShownTable(table, heads, SafeString("".join(rows)), live, cards)


def _column_class(head: Head) -> str:
    """Return the CSS class of the cells of a column."""
    if head.numeric:
        return "num"
    if head.form is Form.MOMENT:
        return "moment"
    return WIDE.get(head.width, "wide")


def _cell_classes(table: Table, row: int, column: int) -> str:
    """Return further CSS classes of a cell, each after a blank: its shade, an unchanged number."""
    classes = ""
    share = table.shades[row][column] if table.shades else None
    if share is not None:
        shade = 1 + min(SHADES - 1, int(SHADES * share))  # 1 to SHADES
        classes += f" heat-{shade}"
    # Pale numbers: in a schedule of steps, those that equal the number in the row above.
    is_step = table.steps and row > 0 and table.heads[column].numeric
    if is_step and table.rows[row][column] == table.rows[row - 1][column]:
        classes += " same"
    return classes


def svg_of(drawing: Drawing, chart: Chart) -> SafeString:
    """Return the drawing of a chart as an SVG element."""
    parts = SafeString("".join(map(_svg_element, drawing.parts)))
    return format_html(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" font-size="{}">{}</svg>',
        f"{drawing.width:g}", f"{drawing.height:g}", chart.label, f"{SIZE:g}", parts,
    )  # fmt: skip


def _svg_element(part: Path | Box | Text) -> SafeString:
    """Return a line or area, a rectangle or a text of a drawing as an SVG element."""
    match part:
        case Path():
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in part.points)
            if part.filled:
                return format_html(
                    '<polygon points="{}" fill="{}" fill-opacity="0.22"/>', points, part.colour
                )
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
