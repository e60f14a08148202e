"""Write results of runs as text: CSV of one table, JSON of the whole result."""

import json
from typing import Any

import polars as pl

from planner.errors import NotReady, PlannerError
from planner.files.csv_cells import FORMULA, safe_cell
from planner.files.documents import json_value
from planner.models import Run
from planner.selectors.runs import run_result, run_table, run_table_rows, run_tables

PARQUET = "application/vnd.apache.parquet"
CSV_ROWS = 1_000_000  # larger tables need Parquet: as text they take gigabytes
MAIN_TABLES = ("plan", "policies", "forecast", "series")  # a CSV holds the first of these
DIGITS = 9  # more than the precision of any figure here


def run_csv(run: Run, name: str) -> str:
    """Return a table of a run as CSV.

    Raises NotReady if the table has more than ``CSV_ROWS`` rows.
    """
    rows = run_table_rows(run, name)
    if rows > CSV_ROWS:
        raise NotReady(
            f"Table {name} has {rows:,} rows, and a CSV holds {CSV_ROWS:,} at most. "
            "Take it as Parquet."
        )
    return csv_text(run_table(run, name))


def csv_text(table: pl.DataFrame) -> str:
    """Return a table as CSV.

    Times are in ISO 8601 UTC. Text is made safe by ``without_formulas``. Figures have ``DIGITS``
    significant digits, which removes binary rounding errors of sums. Parquet and JSON keep every
    digit.
    """
    rounded = table.with_columns(pl.col(pl.Float64).round_sig_figs(DIGITS))
    return without_formulas(rounded).write_csv(datetime_format="%Y-%m-%dT%H:%M:%SZ")


def without_formulas(table: pl.DataFrame) -> pl.DataFrame:
    """Prefix text that a spreadsheet would run as a formula with an apostrophe.

    This includes column names. Labels come from uploaded files, so their text is not trusted.
    """
    text = pl.col(pl.String)
    risky = text.str.slice(0, 1).is_in(list(FORMULA))
    safe = table.with_columns(pl.when(risky).then("'" + text).otherwise(text).name.keep())
    return safe.rename({name: safe_cell(name) for name in safe.columns})


def json_text(run: Run) -> str:
    """Return the result document of a run as JSON."""
    return json.dumps(run_result(run), indent=2) + "\n"


def main_table(run: Run) -> str:
    """Return the name of the table that a CSV of this run contains by default.

    Raises NotReady if the run has no table to export.
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
