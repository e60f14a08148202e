"""Write results of runs and the audit log as text, in CSV and JSON."""

import csv
import io
import json
from typing import Any

import polars as pl

from planner.errors import NotReady, PlannerError
from planner.files.documents import json_value
from planner.models import Run
from planner.selectors.audit import FIELDS, audit_rows
from planner.selectors.runs import run_result, run_table, run_table_rows, run_tables

PARQUET = "application/vnd.apache.parquet"
CSV_ROWS = 1_000_000  # larger tables need Parquet: as text they take gigabytes
MAIN_TABLES = ("plan", "policies", "forecast", "series")  # a CSV holds the first of these
DIGITS = 9  # more than the precision of any figure here
# First characters of a spreadsheet formula; the last four are full-width = + - @.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def run_csv(run: Run, table_name: str) -> str:
    """Return a table of a run as CSV; raise NotReady if it has over CSV_ROWS rows."""
    rows = run_table_rows(run, table_name)
    if rows > CSV_ROWS:
        raise NotReady(
            f"Table {table_name} has {rows:,} rows, and a CSV holds {CSV_ROWS:,} at most. "
            "Take it as Parquet."
        )
    return csv_text(run_table(run, table_name))


def csv_text(table: pl.DataFrame) -> str:
    """Return a table as CSV.

    Times are in ISO 8601 UTC. Text is made safe by ``without_formulas``. Figures have ``DIGITS``
    significant digits, which removes binary rounding errors of sums. Parquet and JSON keep every
    digit.
    """
    rounded = table.with_columns(pl.col(pl.Float64).round_sig_figs(DIGITS))
    return without_formulas(rounded).write_csv(datetime_format="%Y-%m-%dT%H:%M:%SZ")


def without_formulas(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with an apostrophe before text that a spreadsheet would run as a formula.

    This includes column names. Text is not trusted, because labels come from uploaded files.
    """
    text = pl.col(pl.String)  # every text column, so the expressions below apply to each
    is_formula = text.str.slice(0, 1).is_in(list(FORMULA))
    safe_text = pl.when(is_formula).then("'" + text).otherwise(text)
    safe = table.with_columns(safe_text.name.keep())
    return safe.rename({name: safe_cell(name) for name in safe.columns})


def json_text(run: Run) -> str:
    """Return the result document of a run as JSON."""
    return json.dumps(run_result(run), indent=2) + "\n"


def main_table(run: Run) -> str:
    """Return the name of the table that a CSV of a run has by default.

    Raises NotReady if the run is not completed or has none of MAIN_TABLES.
    """
    run_result(run)  # raises NotReady for a run that is not completed
    tables = run_tables(run)
    for name in MAIN_TABLES:
        if name in tables:
            return name
    raise NotReady(f"Run {run.pk} has no table to export. Export it to json.")


def load_result(text: str | bytes, name: str) -> dict[str, Any]:
    """Return the result document in ``text``, which a command wrote with --json.

    Raises PlannerError if the text is no such document. The message names the file ``name``.
    """
    remedy = "Give a run's number or the output of a command with --json."
    result = json_value(text, name, remedy, PlannerError)
    if not isinstance(result, dict) or not isinstance(result.get("run"), int):
        raise PlannerError(f"{name}: no key 'run'. {remedy}")
    return result


def audit_csv(everything: bool) -> str:
    """Return the audit log of the current workspace, or of all (``everything``), as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    for record in audit_rows(everything):
        cells = [record[name] for name in FIELDS]
        writer.writerow([safe_cell(cell) if isinstance(cell, str) else cell for cell in cells])
    return out.getvalue().rstrip("\n")


def audit_json(everything: bool) -> str:
    """Return the audit log of the current workspace, or of all (``everything``), as JSON."""
    return json.dumps({"records": list(audit_rows(everything))}, indent=1)


def safe_cell(text: str) -> str:
    """Return the text with an apostrophe in front if a spreadsheet would run it as a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
