"""Results as text: CSV of a table, JSON of the whole."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from planner.errors import NotReady, PlannerError
from planner.models import Run
from planner.selectors.runs import run_result, run_table, run_table_rows, run_tables
from planner.spreadsheets import FORMULA, safe_cell

PARQUET = "application/vnd.apache.parquet"
CSV_ROWS = 1_000_000  # more are for Parquet: a text of them takes gigabytes
MAIN_TABLES = ("plan", "policies", "forecast", "series")  # what a CSV of a run is, first found
DIGITS = 9  # more than any figure here is known to


def run_csv(run: Run, name: str) -> str:
    """A table of a run as CSV; raises NotReady where it is too long for that."""
    rows = run_table_rows(run, name)
    if rows > CSV_ROWS:
        raise NotReady(
            f"Table {name} has {rows:,} rows, and a CSV holds {CSV_ROWS:,} at most; "
            "take it as Parquet."
        )
    return csv_text(run_table(run, name))


def csv_text(table: pl.DataFrame) -> str:
    """A table as CSV: times in ISO 8601 UTC, text as ``without_formulas``, and figures without the
    dust of sums in binary: DIGITS significant ones, where Parquet and JSON have them all."""
    rounded = table.with_columns(pl.col(pl.Float64).round_sig_figs(DIGITS))
    return without_formulas(rounded).write_csv(datetime_format="%Y-%m-%dT%H:%M:%SZ")


def without_formulas(table: pl.DataFrame) -> pl.DataFrame:
    """Text that a spreadsheet would run as a formula prefixed with an apostrophe, heads of columns
    too: labels come from files that anyone may have written."""
    text = pl.col(pl.String)
    risky = text.str.slice(0, 1).is_in(list(FORMULA))
    safe = table.with_columns(pl.when(risky).then("'" + text).otherwise(text).name.keep())
    return safe.rename({name: safe_cell(name) for name in safe.columns})


def json_text(run: Run) -> str:
    return json.dumps(run_result(run), indent=2) + "\n"


def main_table(run: Run) -> str:
    """The table that a CSV of this run holds unless another is named."""
    have = run_tables(run)
    run_result(run)
    for name in MAIN_TABLES:
        if name in have:
            return name
    raise NotReady(f"Run {run.pk} has no table to export; export it to json.")


def load_result(text: str | bytes, name: str) -> dict[str, Any]:
    """A result document from a file that a command printed with --json."""
    try:
        result = json.loads(text)
    except RecursionError:
        raise PlannerError(
            f"{name} is nested deeper than any result; check its brackets."
        ) from None
    except UnicodeDecodeError:
        raise PlannerError(
            f"{name} is not text; give a run's number or the output of a command with --json."
        ) from None
    except json.JSONDecodeError as error:
        raise PlannerError(
            f"{name}, line {error.lineno}: not JSON; give a run's number or the output of a "
            "command with --json."
        ) from None
    if not isinstance(result, dict) or not isinstance(result.get("run"), int):
        raise PlannerError(
            f"{name}: no 'run' in it; give a run's number or the output of a command with --json."
        )
    return result
