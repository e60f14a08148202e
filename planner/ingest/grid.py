"""One series of a demand file on a regular grid of bins; what is absent stays unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.ingest.rows import Fault
from simulation.arrays import BoolArray, FloatArray, IntArray

AMOUNTS = ("requests", "input_tokens", "output_tokens", "total_tokens")
MAX_BINS = 50_000_000  # of one file's grids together
_OFF_GRID = 0.01  # share of rows that may lie between the bins before a finer width is sought


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Bins of one series; amounts have shape ``[bins]``, NaN where unknown."""

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
        """Bins of which nothing is known."""
        return int(np.all([np.isnan(values) for values in self.amounts.values()], axis=0).sum())

    def total(self, field: str) -> float | None:
        """Sum over the known bins; None when no bin is known."""
        values = self.amounts[field]
        return None if np.isnan(values).all() else float(np.nansum(values))


def bin_width(times: Sequence[IntArray], name: str, bin_s: float | None) -> int:
    """The width of a file's bins in ns: the most common step between a series' times.

    Where more than 1% of the rows lie between such bins, the largest width that has all of them on
    its grid. Raises IngestError when no series has two different times.
    """
    steps = [np.diff(np.unique(ns)) for ns in times]
    every = np.concatenate(steps) if steps else np.empty(0, dtype=np.int64)
    if bin_s is not None:
        width = round(bin_s * 1e9)
        if _share_off(times, width) > _OFF_GRID:
            raise IngestError(
                f"{name}: its times do not fall on bins of {bin_s:g} s; leave the width out to "
                "have it found."
            )
        return width
    if not every.size:
        raise IngestError(
            f"{name}: the bin width cannot be told from one time per series; give it as bin_s, in "
            "seconds."
        )
    values, counts = np.unique(every, return_counts=True)
    usual = int(values[np.argmax(counts)])
    return usual if _share_off(times, usual) <= _OFF_GRID else int(np.gcd.reduce(values))


def _share_off(times: Sequence[IntArray], width: int) -> float:
    off = sum(int(_off_grid(ns, width).sum()) for ns in times)
    return off / sum(ns.size for ns in times)


def _off_grid(ns: IntArray, width: int) -> BoolArray:
    """Rows that do not lie where most do, modulo the width."""
    remainder = ns % width
    values, counts = np.unique(remainder, return_counts=True)
    return np.asarray(remainder != values[np.argmax(counts)])


def lay_out(
    rows: pl.DataFrame,
    identity: Mapping[str, str | None],
    width: int,
    name: str,
    unit: str,
    *,
    room: int,
    zero: bool,
    rates: Collection[str],
) -> tuple[Grid, list[Fault]]:
    """The grid of one series and the rows that have no place on it.

    ``rows`` has columns line, ns and AMOUNTS. A bin that no row names is a gap, or nothing at all
    with ``zero``; a cell without a value is always a gap. A row that repeats another exactly is
    refused; two that differ are a contradiction and raise IngestError, as does a grid of more than
    ``room`` bins.
    """
    off = _off_grid(rows["ns"].to_numpy(), width)
    faults = _faults(rows.filter(off), f"time off the grid of {width / 1e9:g} s bins")
    rows = rows.filter(~off).sort("ns", "line")
    again = ~rows.select(pl.col("ns").is_first_distinct()).to_series()
    if again.any():
        _require_equal(rows, identity, name, unit)
        faults += _faults(rows.filter(again), "bin repeated")
        rows = rows.filter(~again)
    ns = rows["ns"].to_numpy()
    bins = int((ns[-1] - ns[0]) // width) + 1
    if bins > room:
        raise IngestError(
            f"{name}: series {identity['name']} would have {bins:,} bins of {width / 1e9:g} s "
            f"between its first and last time, and {room:,} fit; check the times, or give the "
            "width as bin_s."
        )
    place = (ns - ns[0]) // width
    amounts = {}
    for field in AMOUNTS:
        column = rows[field].to_numpy()
        absent = 0.0 if zero and not np.isnan(column).all() else np.nan
        values = np.full(bins, absent)
        values[place] = column * (width / 1e9) if field in rates else column
        amounts[field] = values
    return Grid(identity, int(ns[0]), width, amounts), faults


def _require_equal(
    rows: pl.DataFrame, identity: Mapping[str, str | None], name: str, unit: str
) -> None:
    """Refuse a series that gives two different amounts for one bin."""
    same = rows["ns"] == rows["ns"].shift(1)
    for field in AMOUNTS:
        differs = same & rows[field].ne_missing(rows[field].shift(1))
        if differs.any():
            second = int(differs.arg_max() or 0)
            first, last = rows["line"][second - 1], rows["line"][second]
            raise IngestError(
                f"{name}: {unit}s {first} and {last} give series {identity['name']} different "
                f"{field} for the same bin; remove one, or map the column that tells them apart "
                "(series=COLUMN)."
            )


def _faults(rows: pl.DataFrame, reason: str) -> list[Fault]:
    if not rows.height:
        return []
    rows = rows.sort("line")
    named = rows.with_columns((pl.col("ns") / 1e9).alias("ns")).rename({"ns": "time_s"})
    lines = rows["line"].to_numpy()
    return [Fault(reason, lines, lambda i: _described(named.row(i, named=True)))]


def _described(row: Mapping[str, object]) -> str:
    """A row as far as it was read, in place of its text."""
    hidden = ("line", "source")
    shown = {key: value for key, value in row.items() if key not in hidden and value is not None}
    return ", ".join(f"{key}={value}" for key, value in shown.items() if value == value)
