"""Write a report as PDF: A4, charts as vectors, table heads repeated on every page.

It uses the standard PDF fonts, which need no embedding and cover western European letters. Other
letters become question marks, and a note on the last page says so.
"""

from collections.abc import Sequence
from html import escape
from io import BytesIO
from typing import Any

from reportlab import platypus
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Table as Grid

from planner.domain.report import (
    Chart,
    Fact,
    Facts,
    Form,
    Meaning,
    Note,
    Report,
    Section,
    Table,
    without_constants,
)
from planner.outputs.cover import Cover
from planner.outputs.render import drawing as shapes
from planner.outputs.render.document import document_of

FONT, BOLD, CODE = "Helvetica", "Helvetica-Bold", "cp1252"
MARGIN, FOOT = 16 * mm, 10 * mm
TEXT_WIDTH = A4[0] - 2 * MARGIN
REPLACEMENTS = str.maketrans(
    {"\u2082": "2", "\u2212": "-", "\u2265": ">=", "\u2264": "<=", "\u2192": "->"}
)
UNKNOWN_LETTER = "?"
# Methods of a canvas that write a text, by its anchor.
WRITERS = {"start": "drawString", "middle": "drawCentredString", "end": "drawRightString"}
FACTS = 5  # facts per row
SHORT = 14  # characters of a value in large letters
GREEN, AMBER = "#137a4b", "#9a3412"
COLOURS = {Meaning.MET: GREEN, Meaning.SAVING: GREEN, Meaning.RISK: AMBER, Meaning.MISSED: AMBER}
PADDING = 7  # points beside the text of a cell
WIDEST_WORD = 0.3  # largest minimum width of a column for its longest word, share of the page
WIDEST_NAMES = 0.22  # largest minimum width of the column of names, share of the page
_INK, _PALE = colors.HexColor(shapes.INK), colors.HexColor("#4b5666")
_MARKED = colors.HexColor("#e7f1f8")
BODY = ParagraphStyle("body", fontName=FONT, fontSize=9.5, leading=13, textColor=_INK)
SMALL = ParagraphStyle("small", BODY, fontSize=8, leading=10.5, textColor=_PALE)
CELL = ParagraphStyle("cell", BODY, fontSize=7.5, leading=9.2, splitLongWords=1)
RIGHT = ParagraphStyle("right", CELL, alignment=2)
HEAD = ParagraphStyle("head", CELL, fontName=BOLD)
HEAD_RIGHT = ParagraphStyle("head-right", HEAD, alignment=2)
TITLE = ParagraphStyle("title", BODY, fontName=BOLD, fontSize=19, leading=23)
ANSWER = ParagraphStyle(
    "answer", BODY, fontSize=12, leading=16.5, leftIndent=10, spaceBefore=6, spaceAfter=8,
    borderColor=colors.HexColor(shapes.BLUE),
)  # fmt: skip
H2 = ParagraphStyle("h2", BODY, fontName=BOLD, fontSize=12.5, leading=16, spaceBefore=12,
                    spaceAfter=3)  # fmt: skip
H3 = ParagraphStyle("h3", BODY, fontName=BOLD, fontSize=9.5, leading=12, spaceBefore=5,
                    keepWithNext=1)  # fmt: skip
BIG = ParagraphStyle("big", BODY, fontName=BOLD, fontSize=13, leading=16)
ITEM = ParagraphStyle("item", BODY, leftIndent=10, bulletIndent=0, spaceAfter=2)
WARNING = ParagraphStyle("warning", ITEM, textColor=colors.HexColor(AMBER))


class Vector(platypus.Flowable):  # type: ignore[misc]  # the library has no types
    """A drawing as wide as the page, as vectors."""

    def __init__(self, drawing: shapes.Drawing, width: float) -> None:
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


def _draw(canvas: Any, part: shapes.Path | shapes.Box | shapes.Text, height: float) -> None:
    """Draw a shape of a drawing with this ``height``; y is flipped, because PDF has y upwards."""
    colour = colors.HexColor(part.colour)
    match part:
        case shapes.Path():
            canvas.setStrokeColor(colour)
            canvas.setFillColor(colour, alpha=0.22 if part.filled else 1.0)
            canvas.setLineWidth(part.width)
            canvas.setDash([5, 3] if part.dashed else [])
            path = canvas.beginPath()
            (first_x, first_y), *others = part.points
            path.moveTo(first_x, height - first_y)
            for x, y in others:
                path.lineTo(x, height - y)
            canvas.drawPath(path, stroke=not part.filled, fill=part.filled)
        case shapes.Box():
            canvas.setFillColor(colour, alpha=1.0)
            bottom = height - part.y - part.height
            canvas.rect(part.x, bottom, part.width, part.height, stroke=0, fill=1)
        case shapes.Text():
            canvas.setFillColor(colour)
            canvas.setFont(FONT, shapes.SIZE)
            write = getattr(canvas, WRITERS[part.anchor])
            write(part.x, height - part.y, printable(part.text))


def printable(text: str) -> str:
    """Return text with replacements for the characters that the PDF fonts do not have."""
    return text.translate(REPLACEMENTS).encode(CODE, "replace").decode(CODE)


def pdf_of(report: Report, cover: Cover) -> bytes:
    """Return a report as PDF."""
    out = BytesIO()
    document = platypus.BaseDocTemplate(
        out, pagesize=A4, leftMargin=MARGIN, rightMargin=MARGIN, topMargin=MARGIN,
        bottomMargin=MARGIN + FOOT, title=f"{report.title}, run {cover.run}", author="Headroom",
        # invariant: write no time stamps, so that the same report gives the same bytes.
        subject=report.answer, invariant=1,
    )  # fmt: skip
    frame = platypus.Frame(MARGIN, MARGIN + FOOT, TEXT_WIDTH, A4[1] - 2 * MARGIN - FOOT, 0, 0, 0, 0)

    def foot(canvas: Canvas, _: Any) -> None:
        """Draw the foot of a page: product, title, run and page number."""
        canvas.setFont(FONT, 7.5)
        canvas.setFillColor(_PALE)
        canvas.drawString(MARGIN, MARGIN, printable(f"Headroom, {report.title} · run {cover.run}"))
        canvas.drawRightString(A4[0] - MARGIN, MARGIN, f"Page {canvas.getPageNumber()}")

    document.addPageTemplates([platypus.PageTemplate("page", [frame], onPage=foot)])
    document.build(_story(report, cover))
    return out.getvalue()


def _text(text: str, style: ParagraphStyle = BODY, **more: Any) -> platypus.Paragraph:
    """Return text as a paragraph."""
    # Paragraph parses markup, so escape text of scenarios.
    return platypus.Paragraph(escape(printable(text), quote=False), style, **more)


def _story(report: Report, cover: Cover) -> list[platypus.Flowable]:
    """Return the parts of the PDF in order: cover, charts, decision, signatures, appendix."""
    document, gap = document_of(report), platypus.Spacer(0, 6)
    about = f"{report.about}. " if report.about else ""
    story: list[platypus.Flowable] = [
        _text(f"Headroom · {cover.heading}", SMALL),
        _text(report.title, TITLE),
        _text(f"{about}{cover.sentence}", SMALL),
        _answer(report.answer),
    ]
    for text in filter(None, (report.opening, report.why)):
        story += [_text(text), gap]
    story.append(_facts(report.facts))
    prices = tuple(alternative.price for alternative in report.alternatives)
    for facts in filter(None, (report.trust, prices)):
        story += [gap, _facts(facts)]
    story += [_chart(chart, report.clock) for chart in report.charts]
    story += [_text(warning, WARNING, bulletText="•") for warning in document.warnings]
    for section in document.decision:
        story += _section(section, report.clock)
    if cover.sign_offs:
        story.append(_signs(cover))
    if document.appendix:
        story += [platypus.PageBreak(), _text("Appendix", TITLE)]
    for section in document.appendix:
        story += _section(section, report.clock)
    cells = [str(value) for table in report.tables for row in table.rows for value in row]
    content = "\n".join((report.title, report.answer, *cells))
    if printable(content).count(UNKNOWN_LETTER) > content.count(UNKNOWN_LETTER):
        letters = f"Letters outside western European scripts show as {UNKNOWN_LETTER}."
        story.append(_text(f"{letters} See the HTML or XLSX.", SMALL))
    return story


def _answer(text: str) -> platypus.Flowable:
    """Return the answer in its box."""
    return Grid(
        [[_text(text, ANSWER)]], colWidths=[TEXT_WIDTH], spaceBefore=8, spaceAfter=6,
        style=[("LINEBEFORE", (0, 0), (0, -1), 3, colors.HexColor(shapes.BLUE)),
               ("TOPPADDING", (0, 0), (-1, -1), 0), ("BOTTOMPADDING", (0, 0), (-1, -1), 2)],
    )  # fmt: skip


def _facts(facts: tuple[Fact, ...]) -> platypus.Flowable:
    """Return facts as a grid with at most FACTS in a row."""
    cells = [_fact(fact) for fact in facts] or [""]
    columns = min(FACTS, len(cells))
    empty_cells = -len(cells) % columns  # at the end of the last row
    cells += [""] * empty_cells
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    line = colors.HexColor(shapes.GRID)
    style = [("GRID", (0, 0), (-1, -1), 0.5, line), ("VALIGN", (0, 0), (-1, -1), "TOP")]
    return Grid(rows, colWidths=[TEXT_WIDTH / columns] * columns, style=style)


def _fact(fact: Fact) -> Any:
    """Return the cell of a fact: label, value, change and note.

    The value is coloured by its meaning, and large if it is short.
    """
    style = BIG if len(fact.text) <= SHORT else BODY
    if colour := COLOURS.get(fact.meaning):
        style = ParagraphStyle("meaning", style, textColor=colors.HexColor(colour))
    value, note = _text(fact.text, style), _text(fact.change_and_note, SMALL)
    return [_text(fact.label, SMALL), value, note]


def _section(section: Section, clock: str) -> list[platypus.Flowable]:
    """Return the parts of a section."""
    # Start a new page near the end of one, so that no title is separated from its table.
    story: list[platypus.Flowable] = [platypus.CondPageBreak(45 * mm), _text(section.title, H2)]
    for block in section.blocks:
        match block:
            case Note():
                story.append(_text(block.text, ITEM, bulletText="•"))
            case Facts():
                story.append(_facts(block.items))
            case Chart():
                story.append(_chart(block, clock))
            case Table():
                if block.title:
                    story.append(_text(block.title, H3))
                if sum(min_widths(block)) > TEXT_WIDTH:
                    block = without_constants(block, lambda head: head.numeric)
                story += [_table(part, clock) for part in page_wide_parts(block)]
                if block.note:
                    story.append(_text(block.note, SMALL))
    return story


def _chart(chart: Chart, clock: str) -> platypus.Flowable:
    """Return a chart with its title and note, on one page."""
    parts: list[platypus.Flowable] = [_text(chart.label, H3)]
    if chart.note:
        parts.append(_text(chart.note, SMALL))
    return platypus.KeepTogether([*parts, Vector(shapes.draw_chart(chart, clock), TEXT_WIDTH)])


def page_wide_parts(table: Table) -> list[Table]:
    """Return a table in parts as wide as a page, which all have its first column."""
    first_width, *other_widths = min_widths(table)
    columns_of_parts: list[list[int]] = []
    used_width = TEXT_WIDTH
    for column, width in enumerate(other_widths, start=1):
        if used_width + width > TEXT_WIDTH:
            columns_of_parts.append([0])
            used_width = first_width
        columns_of_parts[-1].append(column)
        used_width += width
    if len(columns_of_parts) <= 1:
        return [table]
    parts = []
    for columns in columns_of_parts:
        heads = tuple(table.heads[column] for column in columns)
        rows = tuple(tuple(row[column] for column in columns) for row in table.rows)
        parts.append(Table(heads, rows, marked=table.marked))
    return parts


def min_widths(table: Table) -> list[float]:
    """Return the minimum column widths in points, at which only very long words are broken."""
    columns = list(zip(*table.texts(), strict=True)) or [()] * len(table.heads)
    widths = []
    for head, texts in zip(table.display_heads, columns, strict=True):
        word_widths = [_word_width(text, FONT) for text in texts]
        longest_word = max(_word_width(head.full, BOLD), *word_widths, 0)
        widths.append(min(PADDING + longest_word, WIDEST_WORD * TEXT_WIDTH))
    # Names of rows are read most, so they get more than their longest word.
    name_widths = [stringWidth(printable(name), FONT, CELL.fontSize) for name in columns[0]]
    for_names = min(PADDING + max(name_widths, default=0), WIDEST_NAMES * TEXT_WIDTH)
    return [max(widths[0], for_names), *widths[1:]]


def _word_width(text: str, font: str) -> float:
    """Return the width of the longest word in a cell, in points."""
    words = printable(text).split()
    return max((stringWidth(word, font, CELL.fontSize) for word in words), default=0.0)


def _table(table: Table, clock: str) -> platypus.Flowable:
    """Return a table for the page: numbers to the right, marked rows with a pale background."""
    heads = [_text(head.full, HEAD_RIGHT if head.numeric else HEAD) for head in table.display_heads]
    cell_styles = [RIGHT if head.numeric else CELL for head in table.heads]
    rows = [
        list(map(_text, _without_same_date(table, texts), cell_styles))
        for texts in table.texts(clock)
    ]
    # Cells are given as (column, row) of the first and of the last one.
    style: list[Any] = [
        ("LINEBELOW", (0, 0), (-1, 0), 0.8, _INK),
        ("LINEBELOW", (0, 1), (-1, -1), 0.3, colors.HexColor(shapes.GRID)),
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LEFTPADDING", (0, 0), (-1, -1), 2),
        ("RIGHTPADDING", (0, 0), (-1, -1), 4),
        ("TOPPADDING", (0, 0), (-1, -1), 2),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
    ]
    for row in sorted(table.marked):
        below_head = row + 1
        style.append(("BACKGROUND", (0, below_head), (-1, below_head), _MARKED))
    # Divide the page among columns: their minimum, and the rest in proportion to their weights.
    minimum_widths = min_widths(table)
    width_left = max(0.0, TEXT_WIDTH - sum(minimum_widths))
    weights = [0.5 if head.numeric else head.width for head in table.heads]
    widths = [
        minimum + width_left * weight / sum(weights)
        for minimum, weight in zip(minimum_widths, weights, strict=True)
    ]
    # Shrink columns if their minimum widths alone exceed the page.
    widths = [TEXT_WIDTH * width / sum(widths) for width in widths]
    return Grid([heads, *rows], colWidths=widths, repeatRows=1, style=style, spaceBefore=4)


def _without_same_date(table: Table, texts: Sequence[str]) -> list[str]:
    """Return the texts of a row; times on the date of its first time have no date of their own."""
    short, date = [], ""
    for head, text in zip(table.heads, texts, strict=True):
        day, comma, time = text.partition(", ")
        if head.form is not Form.MOMENT or not comma:
            short.append(text)
        elif day == date:
            short.append(time)
        else:
            short.append(text)
            date = date or day
    return short


def _signs(cover: Cover) -> platypus.Flowable:
    """Return the lines for signatures."""
    rows: list[list[Any]] = [["", *(_text(word, HEAD) for word in ("Name", "Decision", "Date"))]]
    for sign_off in cover.sign_offs:
        words = (sign_off.role, sign_off.name, sign_off.decision, sign_off.date)
        rows.append([_text(word, CELL) for word in words])
    line = colors.HexColor(shapes.GRID)
    grid = Grid(rows, colWidths=[TEXT_WIDTH * share for share in (0.2, 0.3, 0.3, 0.2)],
                rowHeights=[14, *[26] * len(cover.sign_offs)],
                style=[("GRID", (0, 0), (-1, -1), 0.5, line)])  # fmt: skip
    return platypus.KeepTogether([_text("Sign-off", H2), grid])
