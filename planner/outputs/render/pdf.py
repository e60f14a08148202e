"""Write a report as PDF: A4, charts as vectors, table heads repeated on every page.

It uses the standard PDF fonts, which need no embedding and cover western European letters. Other
letters become question marks, and a note on the last page says so.
"""

from __future__ import annotations

from html import escape
from io import BytesIO
from typing import Any

from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    BaseDocTemplate,
    CondPageBreak,
    Flowable,
    Frame,
    KeepTogether,
    PageBreak,
    PageTemplate,
    Paragraph,
    Spacer,
)
from reportlab.platypus import Table as Grid

from planner.domain.report import Chart, Fact, Facts, Head, Note, Report, Section, Table
from planner.outputs.cover import Cover
from planner.outputs.render.drawing import (
    BLUE,
    GRID,
    INK,
    SIZE,
    Box,
    Drawing,
    Path,
    Text,
    draw_chart,
)

FONT, BOLD, CODE = "Helvetica", "Helvetica-Bold", "cp1252"
MARGIN, FOOT = 16 * mm, 10 * mm
ROOM = A4[0] - 2 * MARGIN
MOST = 16  # most columns of a table
INSTEAD = {"\u2082": "2", "\u2212": "-", "\u2265": ">=", "\u2264": "<=", "\u2192": "->"}
LOST = "?"
FACTS = 5  # facts per row
_INK, _PALE = colors.HexColor(INK), colors.HexColor("#4b5666")
BODY = ParagraphStyle("body", fontName=FONT, fontSize=9.5, leading=13, textColor=_INK)
SMALL = ParagraphStyle("small", BODY, fontSize=8, leading=10.5, textColor=_PALE)
CELL = ParagraphStyle("cell", BODY, fontSize=7.5, leading=9.2, splitLongWords=1)
RIGHT = ParagraphStyle("right", CELL, alignment=2)
HEAD = ParagraphStyle("head", CELL, fontName=BOLD)
HEAD_RIGHT = ParagraphStyle("head-right", HEAD, alignment=2)
TITLE = ParagraphStyle("title", BODY, fontName=BOLD, fontSize=19, leading=23)
ANSWER = ParagraphStyle(
    "answer", BODY, fontSize=12, leading=16.5, leftIndent=10, spaceBefore=6, spaceAfter=8,
    borderColor=colors.HexColor(BLUE),
)  # fmt: skip
H2 = ParagraphStyle("h2", BODY, fontName=BOLD, fontSize=12.5, leading=16, spaceBefore=12,
                    spaceAfter=3)  # fmt: skip
H3 = ParagraphStyle("h3", BODY, fontName=BOLD, fontSize=9.5, leading=12, spaceBefore=5)
BIG = ParagraphStyle("big", BODY, fontName=BOLD, fontSize=13, leading=16)
ITEM = ParagraphStyle("item", BODY, leftIndent=10, bulletIndent=0, spaceAfter=2)


class Vector(Flowable):  # type: ignore[misc]  # the library has no types
    """A drawing as wide as the page, as vectors."""

    def __init__(self, drawing: Drawing, width: float) -> None:
        super().__init__()
        self.drawing, self.scale = drawing, width / drawing.width
        self.width, self.height = width, drawing.height * self.scale

    def draw(self) -> None:
        """Draw the shapes; the PDF library calls this."""
        canvas = self.canv
        canvas.saveState()
        canvas.scale(self.scale, self.scale)
        for part in self.drawing.parts:
            _draw(canvas, part, self.drawing.height)
        canvas.restoreState()


def _draw(canvas: Any, part: Path | Box | Text, height: float) -> None:
    """Draw a shape; y is flipped because PDF counts from the bottom."""
    match part:
        case Path():
            canvas.setStrokeColor(colors.HexColor(part.colour))
            canvas.setFillColor(colors.HexColor(part.colour), alpha=0.22 if part.filled else 1.0)
            canvas.setLineWidth(part.width)
            canvas.setDash([5, 3] if part.dashed else [])
            line = canvas.beginPath()
            (x, y), *rest = part.points
            line.moveTo(x, height - y)
            for x, y in rest:
                line.lineTo(x, height - y)
            canvas.drawPath(line, stroke=not part.filled, fill=part.filled)
        case Box():
            canvas.setFillColor(colors.HexColor(part.colour), alpha=1.0)
            canvas.rect(part.x, height - part.y - part.height, part.width, part.height, 0, 1)
        case Text():
            canvas.setFillColor(colors.HexColor(part.colour))
            canvas.setFont(FONT, SIZE)
            write = {"end": canvas.drawRightString, "middle": canvas.drawCentredString}
            write.get(part.anchor, canvas.drawString)(part.x, height - part.y, printable(part.text))


def printable(text: str) -> str:
    """Replace letters that the fonts do not have."""
    for letter, other in INSTEAD.items():
        text = text.replace(letter, other)
    return text.encode(CODE, "replace").decode(CODE)


def pdf_of(report: Report, cover: Cover) -> bytes:
    """Return a report as PDF."""
    out = BytesIO()
    document = BaseDocTemplate(
        out, pagesize=A4, leftMargin=MARGIN, rightMargin=MARGIN, topMargin=MARGIN,
        bottomMargin=MARGIN + FOOT, title=f"{report.title}, run {cover.run}", author="Headroom",
        # invariant: write no time stamps, so that the same report gives the same bytes.
        subject=report.answer, invariant=1,
    )  # fmt: skip
    frame = Frame(MARGIN, MARGIN + FOOT, ROOM, A4[1] - 2 * MARGIN - FOOT, 0, 0, 0, 0)

    def foot(canvas: Canvas, _: Any) -> None:
        canvas.setFont(FONT, 7.5)
        canvas.setFillColor(_PALE)
        canvas.drawString(MARGIN, MARGIN, printable(f"Headroom, {report.title} · run {cover.run}"))
        canvas.drawRightString(A4[0] - MARGIN, MARGIN, f"Page {canvas.getPageNumber()}")

    document.addPageTemplates([PageTemplate("page", [frame], onPage=foot)])
    document.build(_story(report, cover))
    return out.getvalue()


def _text(text: str, style: ParagraphStyle = BODY, **more: Any) -> Paragraph:
    """Return text as a paragraph."""
    # Paragraph parses markup, so escape text of scenarios.
    return Paragraph(escape(printable(text), quote=False), style, **more)


def _story(report: Report, cover: Cover) -> list[Flowable]:
    """Return the parts of the document in their order."""
    about = f"{report.about}. " if report.about else ""
    story: list[Flowable] = [
        _text(f"Headroom · {cover.heading}", SMALL),
        _text(report.title, TITLE),
        _text(f"{about}{cover.sentence}", SMALL),
        _answer(report.answer),
        *([_text(report.why), Spacer(0, 6)] if report.why else []),
        _facts(report.facts),
        *(
            [Spacer(0, 6), _facts(tuple(each.price for each in report.alternatives))]
            if report.alternatives
            else []
        ),
        *(KeepTogether(_chart(chart, report.clock)) for chart in report.charts),
        *(_text(warning, ITEM, bulletText="•") for warning in report.warnings),
    ]
    for section in report.sections:
        if not section.folded:
            story += _section(section, report.clock)
    if cover.sign_offs:
        story.append(_signs(cover))
    appendix = [section for section in report.sections if section.folded]
    if appendix:
        story += [PageBreak(), _text("Appendix", TITLE)]
    for section in appendix:
        story += _section(section, report.clock)
    if any(_has_unknown_letter(text) for text in _texts(report)):
        note = f"Letters outside western European scripts show as {LOST}. See the HTML or XLSX."
        story.append(_text(note, SMALL))
    return story


def _has_unknown_letter(text: str) -> bool:
    """Return whether the fonts lack a letter of the text."""
    return printable(text).count(LOST) > text.count(LOST)


def _texts(report: Report) -> list[str]:
    """Return the title, the answer and all table cells."""
    cells = [str(value) for table in report.tables for row in table.rows for value in row]
    return [report.title, report.answer, *cells]


def _answer(text: str) -> Flowable:
    """Return the answer in its box."""
    return Grid(
        [[_text(text, ANSWER)]], colWidths=[ROOM], spaceBefore=8, spaceAfter=6,
        style=[("LINEBEFORE", (0, 0), (0, -1), 3, colors.HexColor(BLUE)),
               ("TOPPADDING", (0, 0), (-1, -1), 0), ("BOTTOMPADDING", (0, 0), (-1, -1), 2)],
    )  # fmt: skip


def _facts(facts: tuple[Fact, ...]) -> Flowable:
    """Return facts as a grid."""
    cells = [
        [
            _text(fact.label, SMALL),
            _text(fact.text, BIG),
            _text(" · ".join(filter(None, (fact.change, fact.note))), SMALL),
        ]
        for fact in facts
    ]
    rows: list[list[Any]] = [cells[i : i + FACTS] for i in range(0, len(cells), FACTS)] or [[""]]
    rows = [[*row, *[""] * (FACTS - len(row))] for row in rows]
    line = colors.HexColor(GRID)
    style = [("GRID", (0, 0), (-1, -1), 0.5, line), ("VALIGN", (0, 0), (-1, -1), "TOP")]
    return Grid(rows, colWidths=[ROOM / FACTS] * FACTS, style=style)


def _section(section: Section, clock: str) -> list[Flowable]:
    """Return the parts of a section."""
    # Start a new page if little room is left, so that no title is separated from its table.
    story: list[Flowable] = [CondPageBreak(45 * mm), _text(section.title, H2)]
    for block in section.blocks:
        match block:
            case Note():
                story.append(_text(block.text, ITEM, bulletText="•"))
            case Facts():
                story.append(_facts(block.items))
            case Chart():
                story.append(KeepTogether(_chart(block, clock)))
            case Table():
                story += _tables(block, clock)
    return story


def _tables(table: Table, clock: str) -> list[Flowable]:
    """Return a table with its title and note, in parts that fit on a page."""
    story: list[Flowable] = [_text(table.title, H3)] if table.title else []
    for part in _parts(table):
        story += [Spacer(0, 4), _table(part, clock)]
    return [*story, _text(table.note, SMALL)] if table.note else story


def _chart(chart: Chart, clock: str) -> list[Flowable]:
    """Return a chart with its title and note."""
    return [
        _text(chart.label, H3),
        *([_text(chart.note, SMALL)] if chart.note else []),
        Vector(draw_chart(chart, clock), ROOM),
    ]


def _parts(table: Table) -> list[Table]:
    """Split a table that has more columns than fit on a page.

    Each part repeats the first column, which names the rows.
    """
    first, rest = 0, [*range(1, len(table.heads))]
    if len(rest) < MOST:
        return [table]
    size = MOST - 1
    return [
        Table(
            tuple(table.heads[i] for i in (first, *rest[start : start + size])),
            tuple(
                tuple(row[i] for i in (first, *rest[start : start + size])) for row in table.rows
            ),
            marked=table.marked,
        )
        for start in range(0, len(rest), size)
    ]


def _table(table: Table, clock: str) -> Flowable:
    """Return a table for the page."""
    heads = [_text(head.full, HEAD_RIGHT if head.numeric else HEAD) for head in table.heads]
    rows = [
        [
            _text(text, RIGHT if head.numeric else CELL)
            for head, text in zip(table.heads, texts, strict=True)
        ]
        for texts in table.texts(clock)
    ]
    style: list[Any] = [
        ("LINEBELOW", (0, 0), (-1, 0), 0.8, _INK),
        ("LINEBELOW", (0, 1), (-1, -1), 0.3, colors.HexColor(GRID)),
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LEFTPADDING", (0, 0), (-1, -1), 2),
        ("RIGHTPADDING", (0, 0), (-1, -1), 4),
        ("TOPPADDING", (0, 0), (-1, -1), 2),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
    ]
    pale = colors.HexColor("#e7f1f8")
    style += [("BACKGROUND", (0, i + 1), (-1, i + 1), pale) for i in sorted(table.marked)]
    return Grid([heads, *rows], colWidths=_widths(table.heads), repeatRows=1, style=style)


def _widths(heads: tuple[Head, ...]) -> list[float]:
    """Return the widths of columns in points."""
    shares = [head.wide if not head.numeric else 0.9 for head in heads]
    return [ROOM * share / sum(shares) for share in shares]


def _signs(cover: Cover) -> Flowable:
    """Return the sign-off lines."""
    heads = ["", *(_text(word, HEAD) for word in ("Name", "Decision", "Date"))]
    rows: list[list[Any]] = [
        heads,
        *(
            [
                _text(word, CELL)
                for word in (sign_off.role, sign_off.name, sign_off.decision, sign_off.date)
            ]
            for sign_off in cover.sign_offs
        ),
    ]
    line = colors.HexColor(GRID)
    grid = Grid(rows, colWidths=[ROOM * share for share in (0.2, 0.3, 0.3, 0.2)],
                rowHeights=[14, *[26] * len(cover.sign_offs)],
                style=[("GRID", (0, 0), (-1, -1), 0.5, line)])  # fmt: skip
    return KeepTogether([_text("Sign-off", H2), grid])
