"""Results as files: CSV of a table, JSON of the whole. One function per format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from planner.errors import NotReady, PlannerError
from planner.models import Run
from planner.selectors.runs import run_result, run_table, run_table_rows, run_tables

PARQUET = "application/vnd.apache.parquet"
CSV_ROWS = 1_000_000  # more are for Parquet: a text of them takes gigabytes
MAIN_TABLES = ("plan", "policies", "forecast", "series")  # what a CSV of a run is, first found
LATER = ("pdf", "html", "xlsx", "hpa", "keda", "wva", "dynamo", "llm-d", "terraform")
DIGITS = 9  # more than any figure here is known to
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell that begins so


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
    """Text that a spreadsheet would run as a formula prefixed with an apostrophe: labels come from
    files that anyone may have written."""
    text = pl.col(pl.String)
    risky = text.str.slice(0, 1).is_in(list(_FORMULA))
    return table.with_columns(pl.when(risky).then("'" + text).otherwise(text).name.keep())


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


def export_run(
    *, run: Run, to: str, folder: Path, table: str | None = None, out: Path | None = None
) -> Path:
    """Write the run's results to ``out``, or to a file in ``folder`` named after the run."""
    writers: dict[str, Callable[[], tuple[str, str]]] = {
        "csv": lambda: (
            f"run-{run.pk}-{table or main_table(run)}.csv",
            run_csv(run, table or main_table(run)),
        ),
        "json": lambda: (f"run-{run.pk}.json", json_text(run)),
    }
    if to in LATER:
        raise PlannerError(f"Export to {to} has not come yet; export to csv or json.")
    if to not in writers:
        raise PlannerError(f"There is no export to {to!r}; choose csv or json.")
    name, content = writers[to]()
    path = out or folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise PlannerError(
            f"{path} cannot be written ({error.strerror}); choose another file with --out."
        ) from None
    return path


def load_result(text: str | bytes, name: str) -> dict[str, Any]:
    """A result document from a file that a command printed with --json."""
    try:
        result = json.loads(text)
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
