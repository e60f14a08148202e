"""Read uploaded measurements and their rows."""

import polars as pl
from django.db.models import QuerySet

from planner.models import Calibration
from planner.selectors.hardware_rows import rows_of
from planner.selectors.lookup import row_by_number
from planner.storage import row_arrays
from simulation.performance.rows import BenchmarkRows

ROWS = "rows"
CALIBRATIONS = "calibrations"  # folder of the data directory
KERNEL_FILE = "kernels"  # the uploaded file, in the calibration's folder
SERVING_TABLE = "served"  # table of the columns on serving that BenchmarkRows does not have
SERVED_COLUMNS = ("model", "gpu", "precision", "tp", "isl", "osl", "concurrency")


def calibrations_list() -> QuerySet[Calibration]:
    """Return all uploaded files of measurements."""
    return Calibration.objects.select_related("owner")


def calibration_get(number: int) -> Calibration:
    """Return an uploaded file by number; raise NotFound."""
    return row_by_number(
        calibrations_list(), "calibration", number, ". Upload a file of measurements first"
    )


def calibration_table(calibration: Calibration) -> pl.DataFrame:
    """Return a file's rows as a table with the columns of BenchmarkRows."""
    return row_arrays.table_read(calibration.store, ROWS)


def calibration_rows(calibration: Calibration) -> BenchmarkRows:
    """Return the rows of an uploaded benchmark file."""
    return rows_of(calibration_table(calibration))
