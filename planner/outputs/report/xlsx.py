"""Write a report as a workbook: one sheet per section, units in the heads, heads frozen.

Text is never written as a formula, because names come from uploaded files.
"""

from __future__ import annotations

from datetime import datetime
from io import BytesIO
from typing import Any

import xlsxwriter

from planner.outputs.report.values import (
    Form,
    Report,
    Section,
    Table,
    Value,
)

WIDTH, WIDE, MOST = 13, 16, 60  # column widths, characters
SHEET = 31  # Excel's limit for sheet names, characters
SIGNED = "name, decision, date"  # placeholder of an empty sign-off


def xlsx_of(report: Report) -> bytes:
    """Return a report as a workbook."""
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
    book.set_properties({"title": report.heading, "author": "Headroom"})
    bold = book.add_format({"bold": True, "text_wrap": True, "valign": "top", "bottom": 1})
    forms = {form: _format(book, form) for form in Form}
    _answer(book, report, bold, forms[Form.TEXT])
    for section in report.sections:
        _sheet(book, section, bold, forms)
    book.close()
    return out.getvalue()


def _format(book: Any, form: Form) -> Any:
    """Return the cell format of a form."""
    text = form is Form.TEXT
    return book.add_format({"num_format": form.value, "text_wrap": text, "valign": "top"})


def _answer(book: Any, report: Report, bold: Any, text: Any) -> None:
    """Write the first sheet: the answer, the run and the facts."""
    sheet = book.add_worksheet("Answer")
    sheet.set_column(0, 0, 28)
    sheet.set_column(1, 1, 24)
    sheet.set_column(2, 2, 60)
    rows = [
        ("Answer", report.answer, ""),
        ("Why", report.why, ""),
        ("Run", str(report.run), report.kind),
        ("Scenario", report.title, ""),
        ("For", report.window, ""),
        ("Computed", report.computed, f"version {report.version}; written {report.written}"),
        *report.facts,
        *(
            (
                sign_off.role,
                sign_off.name,
                ", ".join(filter(None, (sign_off.decision, sign_off.date))) or SIGNED,
            )
            for sign_off in report.sign_offs
        ),
    ]
    for i, head in enumerate(("What", "Value", "Note")):
        sheet.write_string(0, i, head, bold)
    sheet.freeze_panes(1, 0)
    for i, row in enumerate(rows, start=1):
        if row[2] == "" and len(row[1]) > WIDE:
            # Long text without a note also takes the column of notes.
            sheet.merge_range(i, 1, i, 2, "", text)
            sheet.set_row(i, 15 * (1 + len(row[1]) // 80))
        for column, value in enumerate(row):
            if value:
                sheet.write_string(i, column, value, text)


def _sheet(book: Any, section: Section, bold: Any, forms: dict[Form, Any]) -> None:
    """Write the sheets of a section: its notes, then its table."""
    table = section.table or Table((), ())
    if section.items:  # sentences, or notes on a table
        named = section.name if section.table is None else f"{section.name} notes"
        notes = book.add_worksheet(named[:SHEET])
        notes.set_column(0, 0, 120)
        notes.write_string(0, 0, section.title, bold)
        notes.freeze_panes(1, 0)
        for i, item in enumerate(section.items, start=1):
            notes.write_string(i, 0, item, forms[Form.TEXT])
    if not table.heads:
        return
    sheet = book.add_worksheet(section.name[:SHEET])
    sheet.freeze_panes(1, 1)
    for column, head in enumerate(table.heads):
        sheet.set_column(column, column, min(WIDTH + WIDE * (head.wide - 1), MOST))
        sheet.write_string(0, column, head.full, bold)
        for i, row in enumerate(table.rows, start=1):
            _cell(sheet, i, column, row[column], forms[head.form])
    sheet.autofilter(0, 0, max(len(table.rows), 1), len(table.heads) - 1)


def _cell(sheet: Any, row: int, column: int, value: Value, form: Any) -> None:
    """Write a value with the type that it has."""
    match value:
        case None | "":
            sheet.write_blank(row, column, None, form)
        case str():
            sheet.write_string(row, column, value, form)
        case datetime():
            # Excel has no time zones.
            sheet.write_datetime(row, column, value.replace(tzinfo=None), form)
        case _:
            sheet.write_number(row, column, value, form)
