"""Lay the series of a demand file on a regular grid of bins; absent bins are unknown.

All series are laid out together, since a file may have ten thousand series with few rows each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.rows import RefusedRows
from simulation.arrays import BoolArray, FloatArray, IntArray

AMOUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens", "cached_tokens")
MAX_BINS = 50_000_000  # of all grids of one file
FREE_BINS = 1_000_000  # bins that one series may have, even with few rows
SPARSE = 1000  # bins per row of a longer series; with more, its times must be wrong
_LEAST_WITH_ROW = 0.05  # share of bins that have a row, if a finer width is needed
_FEW_STEPS = 20  # of which fewer bins may have a row
_DAY_NS = 86_400 * 10**9
_MONTH_NS = 28 * _DAY_NS
REGULAR = 24  # equal steps in a row that no chance makes
_OFF_GRID = 0.01  # share of rows off the grid above which a finer width is tried


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """One series on its time bins; amounts have shape ``[bins]``, NaN if unknown."""

    identity: Mapping[str, str | None]  # name, model, region, tier
    start_ns: int
    bin_ns: int
    amounts: Mapping[str, FloatArray]

    @property
    def bins(self) -> int:
        return int(self.amounts["requests"].size)

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.bins * self.bin_ns

    @property
    def gaps(self) -> int:
        """Return the number of bins without any known amount."""
        return int(np.isnan([self.amounts[field] for field in AMOUNTS]).all(axis=0).sum())


def number_keys(frame: pl.DataFrame, keys: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ``frame`` with the number of each row's ``keys``, and the table of distinct keys.

    The numbers are in the new column ``number``, from 0 on in order of appearance.
    """
    distinct = frame.select(keys).unique(maintain_order=True).with_row_index("number")
    joined = frame.join(
        distinct, on=list(keys), how="left", nulls_equal=True, maintain_order="left"
    )
    return joined, distinct


def bin_width(number: IntArray, ns: IntArray, name: str, bin_s: float | None) -> int:
    """Return the width of a file's bins in ns: the most common step between times of a series.

    ``number`` is the index of each row's series, and ``ns`` its time. If more than 1% of the rows
    do not fit this width, the result is the largest width that fits all rows. ``bin_s`` is the
    width in seconds that the caller states, or None.

    Raises IngestError if no series has two different times, for bins of two widths, or if ``bin_s``
    does not fit.
    """
    if bin_s is not None:
        width_ns = round(bin_s * 1e9)
        if _off_grid(number, ns, width_ns).mean() > _OFF_GRID:
            raise IngestError(
                f"{name}: its times do not fall on bins of {bin_s:g} s. Leave the width out."
            )
        return width_ns
    # Steps between different times of one series.
    order = np.lexsort((ns, number))
    is_same_series = np.diff(number[order]) == 0
    steps_ns: IntArray = np.diff(ns[order])[is_same_series]
    steps_ns = steps_ns[steps_ns > 0]
    if not steps_ns.size:
        raise IngestError(
            f"{name}: one time per series does not show the bin width. Add the next bin."
        )
    distinct_ns, counts = np.unique(steps_ns, return_counts=True)
    usual_ns = int(distinct_ns[np.argmax(counts)])
    if other_ns := _regular_step(steps_ns, usual_ns):
        raise IngestError(
            f"{name}: its bins are {usual_ns / 1e9:g} s and {other_ns / 1e9:g} s wide. Split the "
            "file."
        )
    if _off_grid(number, ns, usual_ns).mean() <= _OFF_GRID:
        return usual_ns
    width_ns = int(np.gcd.reduce(distinct_ns))
    _check_regular(steps_ns, width_ns, name)
    return width_ns


def _check_regular(steps_ns: IntArray, width_ns: int, name: str) -> None:
    """Raise IngestError for steps of months, or if too few bins of ``width_ns`` have a row."""
    least_ns, most_ns = steps_ns.min(), steps_ns.max()
    bins = steps_ns.sum() / width_ns
    is_sparse = steps_ns.size > _FEW_STEPS and steps_ns.size < _LEAST_WITH_ROW * bins
    if least_ns >= _MONTH_NS or is_sparse:
        unit, unit_ns = ("days", _DAY_NS) if least_ns >= _DAY_NS else ("s", 1e9)
        raise IngestError(
            f"{name}: its times are {least_ns / unit_ns:,.6g} to {most_ns / unit_ns:,.6g} {unit} "
            "apart, so they are not regular bins. Export regular bins, or one row per request."
        )


def _regular_step(steps_ns: IntArray, usual_ns: int) -> int:
    """Return a step (ns) other than ``usual_ns`` that occurs REGULAR times in a row; 0 if none."""
    is_new = np.concatenate(([True], steps_ns[1:] != steps_ns[:-1]))
    run_begins = np.flatnonzero(is_new)  # where each run of equal steps begins
    run_lengths = np.diff(np.append(run_begins, steps_ns.size))
    run_steps_ns = steps_ns[run_begins]
    others_ns = run_steps_ns[(run_steps_ns != usual_ns) & (run_lengths >= REGULAR)]
    return int(others_ns[0]) if others_ns.size else 0


def _off_grid(number: IntArray, ns: IntArray, width_ns: int) -> BoolArray:
    """Return a mask of rows whose time modulo ``width_ns`` differs from most of their series.

    ``number`` is the index of each row's series, and ``ns`` its time.
    """
    rows = pl.DataFrame({"number": number, "remainder": ns % width_ns})
    # Of several most common remainders, the smallest counts.
    usual = rows.select(pl.col("remainder").mode().min().over("number")).to_series()
    return (rows["remainder"] != usual).to_numpy()


def rows_on_grid(
    rows: pl.DataFrame, names: Sequence[str], width_ns: int, place: str
) -> tuple[pl.DataFrame, list[RefusedRows]]:
    """Return the rows that fit on bins of ``width_ns``, at most one per bin, and the others.

    ``rows`` has the columns number (the index of the row's series in ``names``), line, ns and
    AMOUNTS. They return by series and time. A row that repeats another exactly is refused. Raise
    IngestError, which begins with ``place``, for two rows of one bin that contradict each other.
    """
    is_off_grid = _off_grid(rows["number"].to_numpy(), rows["ns"].to_numpy(), width_ns)
    reason = f"time off the grid of {width_ns / 1e9:g} s bins"
    refused = [rows.filter(is_off_grid).with_columns(reason=pl.lit(reason))]
    rows = rows.filter(~is_off_grid).sort("number", "ns", "line")
    is_repeat = (rows["number"] == rows["number"].shift(1)) & (rows["ns"] == rows["ns"].shift(1))
    is_repeat = is_repeat.fill_null(False)
    if is_repeat.any():
        for field in AMOUNTS:
            differs = is_repeat & rows[field].ne_missing(rows[field].shift(1))
            if differs.any():
                second = int(differs.arg_max() or 0)
                first_line, last_line = rows["line"][second - 1], rows["line"][second]
                raise IngestError(
                    f"{place} {first_line} and {last_line} give series "
                    f"{names[rows['number'][second]]} different {field} for the same bin. Remove "
                    "one, or choose the column that tells them apart as series."
                )
        refused.append(rows.filter(is_repeat).with_columns(reason=pl.lit("bin repeated")))
        rows = rows.filter(~is_repeat)
    return rows, _faults_by_reason(pl.concat(refused))


def grids_of(
    rows: pl.DataFrame,
    identities: Sequence[Mapping[str, Any]],
    width_ns: int,
    file_name: str,
    *,
    zero: bool,
    rates: Sequence[Mapping[str, int]] | None = None,
) -> list[Grid]:
    """Return the grid of every series, with bins of ``width_ns``.

    ``rows`` are as of ``rows_on_grid``, by series and time and at most one per bin. Each series has
    an entry in ``identities`` (name, model, region, tier) and in ``rates`` (seconds of the unit, of
    fields that are rates; None: no field is). A bin without a row is a gap, or 0 with ``zero``. A
    cell without a value is always a gap. Raises IngestError for far more bins than rows.
    """
    series_of_row = rows["number"].to_numpy().astype(np.int64)
    ns = rows["ns"].to_numpy()
    # The rows and the number of bins of each series.
    first_row = np.flatnonzero(np.diff(series_of_row, prepend=-1))
    row_count = np.diff(np.append(first_row, series_of_row.size))
    start_ns, last_ns = ns[first_row], ns[first_row + row_count - 1]
    bins = (last_ns - start_ns) // width_ns + 1
    # The grids of all series follow each other in one array, from ``begins`` to ``ends``.
    ends = np.cumsum(bins)
    begins = ends - bins
    most_bins = np.minimum(MAX_BINS - begins, np.maximum(FREE_BINS, SPARSE * row_count))
    too_long = np.flatnonzero(bins > most_bins)  # indices of series
    if too_long.size:
        first = too_long[0]
        raise IngestError(
            f"{file_name}: series {identities[first]['name']} would have {bins[first]:,} bins of "
            f"{width_ns / 1e9:g} s, and at most {max(0, most_bins[first]):,} for "
            f"{row_count[first]:,} rows. Check the times of the file."
        )
    # Fill the amounts of all series by field, and then cut them into grids.
    bin_of_row = begins[series_of_row] + (ns - start_ns[series_of_row]) // width_ns
    amounts: dict[str, FloatArray] = {}
    for field in AMOUNTS:
        column = rows[field].to_numpy()
        amounts[field] = np.full(ends[-1], np.nan)
        if zero:  # an amount that a series never has stays unknown in the bins without a row
            has_amount = np.logical_or.reduceat(~np.isnan(column), first_row)
            amounts[field][np.repeat(has_amount, bins)] = 0.0
        amounts[field][bin_of_row] = column
        if rates:  # a rate is multiplied by the units of time in a bin
            bin_s = width_ns / 1e9
            factors = [bin_s / unit_s[field] if field in unit_s else 1.0 for unit_s in rates]
            amounts[field][bin_of_row] *= np.array(factors)[series_of_row]
    grids = []
    for identity, start, begin, end in zip(identities, start_ns, begins, ends, strict=True):
        amounts_of_series = {field: values[begin:end] for field, values in amounts.items()}
        grids.append(Grid(identity, int(start), width_ns, amounts_of_series))
    return grids


def _faults_by_reason(refused: pl.DataFrame) -> list[RefusedRows]:
    """Return the refused lines by reason; a line of several series counts once, for the first."""
    lines = refused.sort("number", maintain_order=True).unique(
        "line", keep="first", maintain_order=True
    )
    faults = []
    for (reason,), rows in lines.sort("line").partition_by("reason", as_dict=True).items():
        # Rows are described by their values, because their text is not kept.
        values = rows.drop("line", "layout_series", "counter", "number", "reason", strict=False)
        values = values.select((pl.col("ns") / 1e9).alias("time_s"), pl.exclude("ns"))
        row_text = partial(_row_text, values)
        faults.append(RefusedRows(str(reason), rows["line"].to_numpy(), row_text))
    return faults


def _row_text(rows: pl.DataFrame, index: int) -> str:
    """Return the values of a row as text, without empty columns (null or NaN)."""
    row = rows.fill_nan(None).row(index, named=True)
    return ", ".join(f"{key}={value}" for key, value in row.items() if value is not None)
