"""Hold a file's rows, and read its columns as numbers.

Errors name file, line and column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from planner.errors import IngestError
from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.performance.kernel_tables import KernelRows
from simulation.performance.specs import ModelShape

Shapes = Mapping[str, ModelShape]
Rows = Iterator[tuple[str, KernelRows]]  # each with its GPU type


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows of a kernel file with their lines; ``set_aside`` counts unused rows by reason."""

    name: str
    unit: str  # word for a row in messages: line or row
    data: pl.DataFrame = field(repr=False)
    lines: IntArray = field(repr=False)
    set_aside: Counter[str] = field(default_factory=Counter)

    def select(self, mask: pl.Expr | BoolArray) -> Frame:
        """Return a frame of only the rows in ``mask``; it shares the counter ``set_aside``."""
        if not isinstance(mask, pl.Expr):
            mask = pl.lit(pl.Series(mask))
        chosen = self.data.with_row_index("__row").filter(mask)
        lines = self.lines[chosen["__row"].to_numpy()]
        return replace(self, data=chosen.drop("__row"), lines=lines)

    def leave_out(self, reason: str) -> None:
        """Count all rows of this frame as not used, for a reason."""
        self.set_aside[reason] += self.data.height

    def parts(self, *columns: str) -> Iterator[tuple[tuple[str, ...], Frame]]:
        """Yield the frame split by ``columns`` as text ("" for a column that the file lacks)."""
        absent = [pl.lit("").alias(column) for column in columns if column not in self.data.columns]
        all_columns = pl.col(*columns).cast(pl.String).fill_null("")
        texts = self.data.with_columns(absent).select(all_columns)
        for key, rows in texts.with_row_index("__row").group_by(columns, maintain_order=True):
            indices = rows["__row"].to_numpy()
            part = replace(self, data=self.data[indices], lines=self.lines[indices])
            yield tuple(map(str, key)), part

    def numbers(self, column: str, low: float = 0.0) -> FloatArray:
        """Return a column of numbers of at least ``low``; raise IngestError for another cell."""
        if column not in self.data.columns:
            raise IngestError(f"{self.name} lacks the column {column}.")
        values = self.data[column]
        if values.dtype == pl.Categorical:
            values = values.cast(pl.String)
        numbers: FloatArray = values.cast(pl.Float64, strict=False).to_numpy()
        bad = ~np.isfinite(numbers) | (numbers < low)
        if bad.any():
            first = int(bad.argmax())
            cell = values[first]
            words = "empty" if cell is None else repr(cell)
            raise IngestError(
                f"{self.name}, {self.unit} {self.lines[first]}: {column} is {words}; "
                f"it must be a number of at least {low:g}."
            )
        return numbers

    def seconds(self, column: str, per_unit: float) -> FloatArray:
        """Return a column of durations in seconds; each must be above 0."""
        return self.numbers(column, low=1e-12) * per_unit

    def columns(self, names: Mapping[str, str]) -> dict[str, FloatArray]:
        """Return columns of numbers by the planner's names; ``names`` maps these to the file's."""
        return {name: self.numbers(in_file) for name, in_file in names.items()}
