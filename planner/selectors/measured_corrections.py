"""Turn stored measurements into corrections for estimates, sizes and plans."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.db import OperationalError, ProgrammingError

from planner.errors import PlannerError
from planner.inputs.catalogue.estimate_calibration import estimate_fit
from planner.inputs.estimates.measured_corrections import (
    Measurement,
    OwnMeasurements,
    measurements,
    own_of,
)
from planner.inputs.scenario.own_hardware import (
    NOTHING,
    Known,
)
from planner.models import Calibration
from planner.selectors.calibrations import EXTRA, SERVED_COLUMNS, calibration_table
from planner.storage import row_arrays

SECONDS = {"ttft_s": "ttft_ms", "tbt_s": "tbt_ms"}
NEEDED = ("model", "gpu", "isl", "osl", "concurrency")
Row = dict[str, Any]
Kept = tuple[int, str, datetime]  # key, digest and time of a file; its rows never change


def kept_files() -> tuple[Kept, ...]:
    """Return the uploaded benchmark files, oldest first; none if there is no database yet."""
    try:
        rows = Calibration.objects.filter(kind=Calibration.Kind.BENCHMARK).order_by("pk")
        return tuple(rows.values_list("pk", "sha256", "created_at"))
    except (OperationalError, ProgrammingError):
        return ()


def kept_rows() -> list[Row]:
    """Return name and rows of each stored file with rows that estimates can be compared with."""
    files = Calibration.objects.in_bulk([number for number, _, _ in kept_files()])
    files_with_rows = [{"name": file.name, "rows": served_rows(file)} for file in files.values()]
    return [file_rows for file_rows in files_with_rows if file_rows["rows"]]


def own_kept(known: Known) -> OwnMeasurements | None:
    """Return the measurements of the stored files; None if there are none."""
    files = kept_files()
    if not files:
        return None
    if known != NOTHING:  # own hardware may change between two calls, so do not cache
        return own_of_rows(kept_rows(), known)
    return _remembered(files)


@lru_cache(maxsize=8)
def _remembered(files: tuple[Kept, ...]) -> OwnMeasurements | None:
    return own_of_rows(kept_rows(), NOTHING)


def own_of_rows(files: Sequence[Row], known: Known) -> OwnMeasurements | None:
    """Return the measurements in rows as ``kept_rows`` returns them."""
    measured: list[Measurement] = []
    notes: list[str] = []
    for file in files:
        try:
            some, left = measurements(file["rows"], file["name"], known)
        except PlannerError as problem:  # a file of other models, which profiles may still use
            notes.append(str(problem))
            continue
        measured += some
        notes += left
    return own_of(measured, notes, estimate_fit())


def served_rows(calibration: Calibration) -> list[Row]:
    """Return the rows of a file with a number of requests in flight, as estimates take them."""
    table = calibration_table(calibration).to_dicts()
    extra: list[Row] = [{}] * len(table)
    if EXTRA in row_arrays.tables_list(calibration.store):
        extra = row_arrays.table_read(calibration.store, EXTRA).to_dicts()
    engine = calibration.report.get("engine", {})
    rows = []
    for row, more in zip(table, extra, strict=True):
        served: Row = {name: row[name] for name in SERVED_COLUMNS if row[name] not in (None, "")}
        served |= {to: row[name] * 1e3 for name, to in SECONDS.items() if row[name] is not None}
        served = {**engine, **served, **{k: v for k, v in more.items() if v is not None}}
        if all(name in served for name in NEEDED) and set(SECONDS.values()) & served.keys():
            rows.append(served)
    return rows


def own_rows(rows: Any, name: str, known: Known) -> OwnMeasurements:
    """Return the measurements in given rows; raise PlannerError if none is usable."""
    measured, left = measurements(rows, name, known)
    learnt = own_of(measured, left, estimate_fit())
    if learnt is None:
        raise PlannerError(f"{name} holds no measured row of a deployment that fits its GPUs.")
    return learnt


def joined(first: OwnMeasurements | None, second: OwnMeasurements | None) -> OwnMeasurements | None:
    """Return two sets of measurements as one."""
    if first is None or second is None:
        return first or second
    return own_of([*first.rows, *second.rows], [*first.notes, *second.notes], estimate_fit())
