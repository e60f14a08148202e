"""Write a report as a workbook: one sheet per section, units in the heads, heads frozen.

Text is never written as a formula, because names come from uploaded files.
"""

from collections.abc import Iterator
from datetime import datetime
from io import BytesIO
from typing import Any

import xlsxwriter

from planner.domain.formats import local
from planner.domain.report import Fact, Facts, Form, Note, Report, Section, Table
from planner.outputs.cover import Cover

# Width of a column, more per step of relative width, and largest width, in characters.
WIDTH, WIDE, MOST = 13, 16, 60
SHEET = 31  # Excel's limit for sheet names, characters
ANSWER_COLUMNS = (("What", 28), ("Value", 24), ("Note", 60))  # of the first sheet, with widths
TO_SIGN = "name, decision, date"  # placeholder of an empty sign-off


def xlsx_of(report: Report, cover: Cover, created_at: datetime | None = None) -> bytes:
    """Return a report as a workbook, created at a moment in UTC; None: now."""
    out = BytesIO()
    book = xlsxwriter.Workbook(
        out,
        {
            "in_memory": True,
            "strings_to_formulas": False,
            "strings_to_urls": False,
            # By default the library raises an error for numbers that are not finite.
            "nan_inf_to_errors": True,
        },
    )
    title = f"{report.title} · run {cover.run}"
    book.set_properties({"title": title, "author": "Headroom", "created": created_at})
    bold = book.add_format({"bold": True, "text_wrap": True, "valign": "top", "bottom": 1})
    forms = {
        form: book.add_format(
            {"num_format": form.value, "text_wrap": form is Form.TEXT, "valign": "top"}
        )
        for form in Form
    }
    _answer(book, report, cover, bold, forms[Form.TEXT])
    for section in sorted(report.sections, key=lambda section: section.order):
        _sheet(book, section, bold, forms)
    book.close()
    return out.getvalue()


def _answer(book: Any, report: Report, cover: Cover, bold: Any, text: Any) -> None:
    """Write the first sheet: the answer, the run, facts, warnings and sign-offs."""
    sheet = book.add_worksheet("Answer")
    for column, (head, width) in enumerate(ANSWER_COLUMNS):
        sheet.set_column(column, column, width)
        sheet.write_string(0, column, head, bold)
    sheet.freeze_panes(1, 0)
    for row, cells in enumerate(_answer_rows(report, cover), start=1):
        _, value, note = cells
        if not note and len(value) > WIDE:
            # Long text without a note also takes the column of notes.
            sheet.merge_range(row, 1, row, 2, "", text)
            sheet.set_row(row, 15 * (1 + len(value) // 80))  # 15 points for 80 characters
        for column, cell in enumerate(cells):
            if cell:
                sheet.write_string(row, column, cell, text)


def _answer_rows(report: Report, cover: Cover) -> list[tuple[str, str, str]]:
    """Return the rows of the first sheet: what, value and note."""
    rows = [("Answer", report.answer, "")]
    if report.opening:
        rows.append(("Current autoscaler", report.opening, ""))
    rows += [
        ("Why", report.why, ""),
        ("Run", str(cover.run), cover.kind),
        ("Scenario", report.title, ""),
        ("For", report.about, ""),
        ("Computed", cover.computed, f"version {cover.version}; written {cover.written}"),
    ]
    prices = [alternative.price for alternative in report.alternatives]
    rows += map(_fact, (*report.facts, *report.trust, *prices))
    rows += [("Warning", warning, "") for warning in report.warnings]
    for sign_off in cover.sign_offs:
        decision_and_date = ", ".join(filter(None, (sign_off.decision, sign_off.date)))
        rows.append((sign_off.role, sign_off.name, decision_and_date or TO_SIGN))
    return rows


def _fact(fact: Fact) -> tuple[str, str, str]:
    """Return the three cells of a fact: its label, its value, its change and note."""
    return fact.label, fact.text, fact.change_and_note


def _sheet(book: Any, section: Section, bold: Any, forms: dict[Form, Any]) -> None:
    """Write the sheets of a section: one of its sentences and facts, then one per table."""
    lines = list(_lines(section))
    if lines:
        notes = _worksheet(book, f"{section.sheet} notes" if section.tables else section.sheet)
        has_facts = any(len(line) > 1 for line in lines)
        notes.set_column(0, 0, 40 if has_facts else 120)
        notes.set_column(1, 2, 40)
        notes.write_string(0, 0, section.title, bold)
        notes.freeze_panes(1, 0)
        for row, line in enumerate(lines, start=1):
            for column, text in enumerate(line):
                notes.write_string(row, column, text, forms[Form.TEXT])
    for number, table in enumerate(section.tables):
        name = table.title if number and table.title else section.sheet
        _table(_worksheet(book, name), table, bold, forms)


def _lines(section: Section) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each line of notes: one for a sentence, three for a fact."""
    for block in section.blocks:
        match block:
            case Note():
                yield (block.text,)
            case Facts():
                yield from map(_fact, block.items)
            case Table(note=note) if note:
                yield (note,)


def _worksheet(book: Any, name: str) -> Any:
    """Return a new sheet called ``name``, with a number behind a name that is already used."""
    used = {sheet.get_name().lower() for sheet in book.worksheets()}
    valid = "".join(" " if letter in r"[]:*?/\\" else letter for letter in name)[:SHEET]
    unused, number = valid, 1
    while unused.lower() in used:
        number += 1
        unused = f"{valid[: SHEET - 3]} {number}"
    return book.add_worksheet(unused)


def _table(sheet: Any, table: Table, bold: Any, forms: dict[Form, Any]) -> None:
    """Write a table: headings with their units, then values with their types."""
    sheet.freeze_panes(1, 1)
    for column, head in enumerate(table.heads):
        width = min(WIDTH + WIDE * (head.width - 1), MOST)
        sheet.set_column(column, column, width)
        sheet.write_string(0, column, head.full, bold)
        for row, values in enumerate(table.rows, start=1):
            value, form = values[column], forms[head.form]
            match value:
                case None | "":
                    sheet.write_blank(row, column, None, form)
                case str():
                    sheet.write_string(row, column, value, form)
                case datetime():
                    # Excel has no time zones.
                    sheet.write_datetime(row, column, local(value).replace(tzinfo=None), form)
                case _:
                    sheet.write_number(row, column, value, form)
    sheet.autofilter(0, 0, max(len(table.rows), 1), len(table.heads) - 1)
