"""Reading reports in tests."""

from planner.domain.report import Report, Table, Value
from planner.models import Run
from planner.outputs.reports import run_report


def last_report() -> Report:
    """The report of the latest run."""
    return run_report(Run.objects.latest("pk"))


def tables_of(report: Report, sheet: str) -> tuple[Table, ...]:
    return next(section.tables for section in report.sections if section.sheet == sheet)


def rows_of(table: Table) -> list[dict[str, Value]]:
    """The rows of a table by head."""
    names = [head.text for head in table.heads]
    return [dict(zip(names, row, strict=True)) for row in table.rows]
