"""Check the values of rows, and count the refused rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.clock import BLANK
from planner.inputs.ingest.report import Reject
from planner.inputs.ingest.rows import Fault
from simulation.arrays import BoolArray, FloatArray, IntArray

SAMPLES = 3  # examples kept per reason
TEXT = 80
MAX_AMOUNT = 1e15  # requests or tokens in one bin
MAX_LABELS = 10_000


class Tally:
    """A count of refused rows by reason, with the first few of each."""

    def __init__(self, name: str, unit: str, *, strict: bool) -> None:
        self._name, self._unit, self._strict = name, unit, strict
        self.reasons: dict[str, int] = {}
        self._samples: dict[str, list[Reject]] = {}

    @property
    def total(self) -> int:
        return sum(self.reasons.values())

    @property
    def samples(self) -> tuple[Reject, ...]:
        """Return the first rows of each reason, in the order of the file."""
        return tuple(
            sorted((s for rejects in self._samples.values() for s in rejects), key=lambda s: s.line)
        )

    def add(self, fault: Fault) -> None:
        """Count the rows of a fault, and keep the first few as examples."""
        count = int(fault.lines.size)
        self.reasons[fault.reason] = self.reasons.get(fault.reason, 0) + count
        rejects = self._samples.setdefault(fault.reason, [])
        for i in range(min(count, SAMPLES - len(rejects))):
            rejects.append(Reject(int(fault.lines[i]), fault.reason, fault.text(i)[:TEXT]))

    def close_batch(self) -> None:
        """Raise IngestError for the first refused row, if the caller asked for a strict reading."""
        if self._strict and self._samples:
            first = self.samples[0]
            raise IngestError(
                f"{self._name}, {self._unit} {first.line}: {first.reason} ({first.text!r}); "
                "correct it, or read the file without --strict to leave such rows out."
            )

    def require_some(self, rows: int) -> None:
        """Raise IngestError for a file without rows, or with all rows refused."""
        if rows == 0:
            raise IngestError(
                f"{self._name} has column names but no rows; export it again with its data."
            )
        if rows == self.total:
            first = self.samples[0]
            raise IngestError(
                f"{self._name}: all {rows:,} rows were rejected, the first ({self._unit} "
                f"{first.line}, {first.text!r}) for: {first.reason}; check the format and the "
                "mapping of columns."
            )


def first_reasons(
    refused: list[Mapping[str, BoolArray]], lines: IntArray, text: Callable[[int], str]
) -> tuple[BoolArray | None, list[Fault]]:
    """Return the refused rows, and their faults: each row once, under its first reason.

    The rows are None if every row is accepted.
    """
    bad: BoolArray | None = None
    faults = []
    for reasons in refused:
        for reason, mask in reasons.items():
            new = mask if bad is None else mask & ~bad
            rows = np.flatnonzero(new)
            if rows.size:
                faults.append(Fault(reason, lines[rows], _at(text, rows)))
                bad = new if bad is None else bad | new
    return bad, faults


def _at(text: Callable[[int], str], rows: IntArray) -> Callable[[int], str]:
    return lambda i: text(int(rows[i]))


def token_counts(
    series: pl.Series, field: str, limit: int, zero: str
) -> tuple[IntArray, dict[str, BoolArray]]:
    """Return tokens of one request: whole numbers from 1 to ``limit``, written as such or as 374.0.

    Returns the values (0 if refused) and the refused rows by reason. ``zero`` is the reason for 0.
    """
    exact = series.cast(pl.Int64, strict=False) if not series.dtype.is_float() else None
    if exact is not None and exact.is_between(1, limit).all(ignore_nulls=False):
        return exact.to_numpy(), {}
    number, blank = numbers(series)
    nan = np.isnan(number)
    is_whole = ~nan & (np.floor(number) == number)
    good = is_whole & (number >= 1) & (number <= limit)
    refused = {
        f"{field} missing or NaN": blank,
        f"{field} not a number": nan & ~blank,
        f"{field} above {limit:,}": number > limit,
        f"{field} negative": number < 0,
        zero: number == 0,
        f"{field} not a whole number": ~nan & ~is_whole & (number > 0) & (number <= limit),
    }
    return np.where(good, number, 0).astype(np.int64), _any(refused)


def amounts(series: pl.Series, field: str) -> tuple[FloatArray, dict[str, BoolArray]]:
    """Return amounts per bin of a demand file, NaN for an empty cell, and the refused rows."""
    number, blank = numbers(series)
    refused = {
        f"{field} not a number": np.isnan(number) & ~blank,
        f"{field} above {MAX_AMOUNT:g}": number > MAX_AMOUNT,
        f"{field} negative": number < 0,
    }
    return number, _any(refused)


def numbers(series: pl.Series) -> tuple[FloatArray, BoolArray]:
    """Return values as floats, NaN without a number, and the blank rows (empty, null, NaN)."""
    if series.dtype.is_numeric():
        number = series.cast(pl.Float64).fill_null(np.nan).to_numpy()
        return number, np.isnan(number)
    text = series.cast(pl.String, strict=False).str.strip_chars()
    number = text.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    if not np.isnan(number).any():
        return number, np.zeros(number.size, dtype=np.bool_)
    blank = text.is_null() | text.str.to_lowercase().is_in(BLANK)
    return number, blank.to_numpy()


def _any(refused: dict[str, BoolArray]) -> dict[str, BoolArray]:
    return {reason: mask for reason, mask in refused.items() if mask.any()}


class Names:
    """The distinct labels of a column, in order of appearance."""

    def __init__(self, field: str, file: str) -> None:
        self._field, self._file = field, file
        self._seen: dict[str, None] = {}
        self.blank = 0  # rows without a label

    def add(self, labels: pl.Series) -> None:
        self.blank += labels.null_count()
        for label in labels.drop_nulls().unique(maintain_order=True):
            self._seen.setdefault(label)
        if len(self._seen) > MAX_LABELS:
            raise IngestError(
                f"{self._file}: the column taken for {self._field} has more than {MAX_LABELS:,} "
                f"different values, so it is no {self._field}; map another "
                f"({self._field}=COLUMN)."
            )

    @property
    def seen(self) -> tuple[str, ...]:
        return tuple(self._seen)


def labels(series: pl.Series) -> pl.Series:
    """Return a label column as text; null if empty."""
    text = series.cast(pl.String, strict=False).str.strip_chars()
    return text.set(text == "", None) if (text == "").any() else text
