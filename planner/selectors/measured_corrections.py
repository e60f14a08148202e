"""Read uploaded measurements; turn them into corrections for estimates, sizes and plans."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import polars as pl
from django.db import OperationalError, ProgrammingError
from django.db.models import QuerySet

from planner.errors import PlannerError
from planner.inputs.catalogue.estimate_calibration import estimate_fit
from planner.inputs.estimates.measured_corrections import (
    MeasuredCorrections,
    Measurement,
    corrections_from,
    measurements,
)
from planner.inputs.scenario.user_facts import NO_USER_FACTS, UserFacts
from planner.models import Calibration
from planner.selectors.lookup import row_by_number
from planner.storage import row_arrays

MS_COLUMNS = {"ttft_s": "ttft_ms", "tbt_s": "tbt_ms"}
COUNTS = ("completed", "failed")  # tables of earlier versions lack them
REQUIRED_COLUMNS = ("model", "gpu", "isl", "osl", "concurrency")
ASSUMED_FACTS = {  # what estimates assume for a row that does not state a fact
    "engine": "engine vllm",
    "engine_version": "its latest known version",
    "ttft_statistic": "mean TTFT",
}
Row = dict[str, Any]
StoredFile = tuple[int, str, datetime]  # id, digest and upload of a file; its rows never change
ROWS = "rows"
CALIBRATIONS = "calibrations"  # folder of the data directory
KERNEL_FILE = "kernels"  # the uploaded file, in the calibration's folder
SERVING_TABLE = "served"  # table of the columns that BenchmarkRows does not have
SERVED_COLUMNS = ("model", "gpu", "precision", "tp", "isl", "osl", "concurrency")


def stored_files() -> tuple[StoredFile, ...]:
    """Return the uploaded benchmark files, oldest first; empty if the database is not set up."""
    try:
        rows = Calibration.objects.filter(kind=Calibration.Kind.BENCHMARK).order_by("pk")
        return tuple(rows.values_list("pk", "sha256", "created_at"))
    except (OperationalError, ProgrammingError):
        return ()


def stored_rows() -> list[Row]:
    """Return {"name", "rows"} of each stored file with rows that estimates can use."""
    files = Calibration.objects.in_bulk([number for number, _, _ in stored_files()])
    rows_by_name = ((file.name, deployment_rows(file)) for file in files.values())
    return [{"name": name, "rows": rows} for name, rows in rows_by_name if rows]


def stored_measurements(hardware: UserFacts) -> MeasuredCorrections | None:
    """Return the corrections by all stored files; None if no row is usable.

    ``hardware`` are the user's own GPU types and models.
    """
    files = stored_files()
    if not files:
        return None
    if hardware != NO_USER_FACTS:  # own hardware may change between two calls, so do not cache
        return measurements_of_files(stored_rows(), hardware)
    return _cached_measurements(files)


@lru_cache(maxsize=8)
def _cached_measurements(files: tuple[StoredFile, ...]) -> MeasuredCorrections | None:
    """Return the corrections by all stored files; ``files`` is only the key of the cache."""
    return measurements_of_files(stored_rows(), NO_USER_FACTS)


def measurements_of_files(files: Sequence[Row], hardware: UserFacts) -> MeasuredCorrections | None:
    """Return the corrections by the rows of ``files``; None if no row is usable.

    A file is a dict with its ``name`` and ``rows``. ``hardware`` are the user's own types.
    """
    measured: list[Measurement] = []
    notes: list[str] = []
    for file in files:
        try:
            usable, file_notes = measurements(file["rows"], file["name"], hardware)
        except PlannerError as problem:  # a file of other models, which profiles may still use
            notes.append(str(problem))
            continue
        measured += usable
        notes += file_notes
    return corrections_from(measured, notes, estimate_fit())


def deployment_rows(calibration: Calibration) -> list[Row]:
    """Return the rows of a file that estimates can use, in the form of their input.

    Such a row has REQUIRED_COLUMNS and a measured time. ``assumed`` lists what it does not state.
    """
    rows = []
    for row in facts_of(calibration):
        has_time = any(name in row for name in MS_COLUMNS.values())
        if has_time and all(name in row for name in REQUIRED_COLUMNS):
            assumed = [text for name, text in ASSUMED_FACTS.items() if not row.get(name)]
            rows.append(row | {"assumed": ", ".join(assumed)})
    return rows


def facts_of(calibration: Calibration) -> list[Row]:
    """Return the known values of every row of a file by name, with times in milliseconds.

    They include the engine settings of the file, and how the row was served, if stored.
    """
    table = calibration_table(calibration).to_dicts()
    serving: list[Row] = [{}] * len(table)
    if SERVING_TABLE in row_arrays.tables_list(calibration.store):
        serving = row_arrays.table_read(calibration.store, SERVING_TABLE).to_dicts()
    engine = calibration.report.get("engine", {})
    in_ms = MS_COLUMNS | {"e2e_s": "e2e_ms"}
    rows: list[Row] = []
    for number, (row, serving_row) in enumerate(zip(table, serving, strict=True), 1):
        deployment = {name: row[name] for name in SERVED_COLUMNS if row[name] not in (None, "")}
        times = {ms: row[name] * 1e3 for name, ms in in_ms.items() if row[name] is not None}
        counts = {name: row[name] for name in COUNTS if row.get(name) is not None}
        others = {name: value for name, value in serving_row.items() if value is not None}
        rows.append({**engine, **deployment, **times, **counts, **others, "row": number})
    return rows


def measurements_of_rows(rows: Any, name: str, hardware: UserFacts) -> MeasuredCorrections:
    """Return the corrections by ``rows`` of a request; raise PlannerError if none is usable.

    ``name`` names the rows in messages.
    """
    measured, notes = measurements(rows, name, hardware)
    own_measurements = corrections_from(measured, notes, estimate_fit())
    if own_measurements is None:
        raise PlannerError(f"{name} holds no measured row of a deployment that fits its GPUs.")
    return own_measurements


def merge_measurements(
    first: MeasuredCorrections | None, second: MeasuredCorrections | None
) -> MeasuredCorrections | None:
    """Return the corrections by the measurements of both; None if both are None."""
    if first is None or second is None:
        return first or second
    return corrections_from(
        [*first.rows, *second.rows], [*first.notes, *second.notes], estimate_fit()
    )


def calibrations_list() -> QuerySet[Calibration]:
    """Return all uploaded files of measurements."""
    return Calibration.objects.select_related("owner")


def calibration_get(number: int) -> Calibration:
    """Return the uploaded file of measurements with this id; raise NotFound."""
    return row_by_number(
        calibrations_list(), "calibration", number, ". Upload a file of measurements first"
    )


def calibration_table(calibration: Calibration) -> pl.DataFrame:
    """Return the rows of an uploaded benchmark file, with the columns of BenchmarkRows."""
    return row_arrays.table_read(calibration.store, ROWS)
