"""Build a mixed-integer program as arrays, block by block, without loops over named variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import highspy
import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, FloatArray, IntArray

INF = highspy.kHighsInf
Entry = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]  # row, variable, coefficient
# Tolerances of a constraint: a share of its bound (absolute for bounds below 1), and a share of
# its terms, since CBC prints values with eight digits.
BOUND_TOLERANCE, TERMS_TOLERANCE = 1e-5, 1e-7


@dataclass(frozen=True, slots=True)
class RowFamily:
    """A named group of program rows, from ``first`` up to but excluding ``beyond``."""

    name: str
    first: int
    beyond: int
    # Returns row i of the family (from 0) in words, to explain conflicts. None for rows that only
    # define variables and so cannot conflict.
    words: Callable[[int], str] | None


@dataclass(frozen=True, slots=True, eq=False)
class LinearProgram:
    """The program  min cost x  subject to  row_lower <= A x <= row_upper, lower <= x <= upper."""

    cost: FloatArray  # [n]
    lower: FloatArray  # [n]
    upper: FloatArray  # [n]
    whole: BoolArray  # [n] True for integer variables
    begins: IntArray  # [m + 1] A by rows: row i has entries begins[i] to begins[i + 1]
    columns: IntArray  # [entries]
    values: FloatArray  # [entries]
    row_lower: FloatArray  # [m]
    row_upper: FloatArray  # [m]

    def with_row(self, row: FloatArray, limit: float) -> LinearProgram:
        """Return the program with the row  ``row`` x <= limit  added."""
        present = np.flatnonzero(row)
        return replace(
            self,
            begins=np.append(self.begins, self.begins[-1] + len(present)),
            columns=np.concatenate([self.columns, present]),
            values=np.concatenate([self.values, row[present]]),
            row_lower=np.append(self.row_lower, -np.inf),
            row_upper=np.append(self.row_upper, limit),
        )

    def is_feasible(self, x: FloatArray) -> bool:
        """Return True if the values ``x`` satisfy every row and bound, within small tolerances.

        They are ``BOUND_TOLERANCE`` of a bound and, for rows, ``TERMS_TOLERANCE`` of the sum of
        absolute terms.
        """
        terms = self.values * x[self.columns]  # of each entry of the matrix
        rounding = TERMS_TOLERANCE * self._by_row(np.abs(terms))
        rows = (self._by_row(terms), self.row_lower, self.row_upper, rounding)
        variables = (x, self.lower, self.upper, np.zeros(len(x)))
        for values, lower, upper, extra_tolerance in (rows, variables):
            is_above = np.all(values >= lower - _tolerance(lower) - extra_tolerance)
            is_below = np.all(values <= upper + _tolerance(upper) + extra_tolerance)
            if not (is_above and is_below):
                return False
        return True

    def activity(self, x: FloatArray) -> FloatArray:
        """Return the left side of every row at the values ``x``, ``A x [m]``."""
        return self._by_row(self.values * x[self.columns])

    def _by_row(self, terms: FloatArray) -> FloatArray:
        """Return the sum of the terms of each row, ``[m]``."""
        row = np.repeat(np.arange(len(self.row_lower)), np.diff(self.begins))
        return np.bincount(row, terms, len(self.row_lower)).astype(float)


def _tolerance(bound: FloatArray) -> FloatArray:
    """Return by how much a value may exceed ``bound``: a share of it, or of 1 if it is smaller."""
    finite = np.where(np.isfinite(bound), np.abs(bound), 0.0)
    return BOUND_TOLERANCE * np.maximum(1.0, finite)


@dataclass(slots=True)
class Builder:
    """A program under construction: variables and rows are added, and ``program`` returns it."""

    _variables: list[tuple[FloatArray, FloatArray, BoolArray]] = field(default_factory=list)
    _entries: list[tuple[IntArray, IntArray, FloatArray]] = field(default_factory=list)
    _bounds: list[tuple[FloatArray, FloatArray]] = field(default_factory=list)
    families: list[RowFamily] = field(default_factory=list)
    count: int = 0  # variables so far
    rows: int = 0

    def variables(
        self,
        count: int,
        *,
        cost: npt.ArrayLike = 0.0,
        upper: npt.ArrayLike = INF,
        integral: bool = False,
    ) -> IntArray:
        """Add ``count`` variables of at least 0 and return their column indices.

        ``integral`` variables take whole numbers only.
        """
        costs, limits = (
            np.broadcast_to(np.asarray(value, float), count) for value in (cost, upper)
        )
        self._variables.append((costs, limits, np.full(count, integral)))
        self.count += count
        return np.arange(self.count - count, self.count)

    def grid(
        self,
        shape: tuple[int, ...],
        *,
        cost: npt.ArrayLike = 0.0,
        upper: npt.ArrayLike = INF,
        integral: bool = False,
    ) -> IntArray:
        """Add variables >= 0 in an array of ``shape`` and return their column indices.

        ``cost`` and ``upper`` broadcast to the shape. ``integral`` variables take whole numbers
        only.
        """
        costs, limits = (
            np.broadcast_to(np.asarray(value, float), shape) for value in (cost, upper)
        )
        variables = self.variables(
            costs.size, cost=costs.ravel(), upper=limits.ravel(), integral=integral
        )
        return variables.reshape(shape)

    def add(
        self,
        family: str,
        entries: list[Entry],
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
        count: int,
        words: Callable[[int], str] | None = None,
    ) -> None:
        """Add ``count`` rows of one constraint family with bounds ``lower`` and ``upper``.

        ``entries`` are (row of the family counted from 0, variable, coefficient) and broadcast.
        ``words(row)`` returns a row in words, for messages on conflicts.
        """
        for row, column, value in entries:
            rows, columns, coefficients = np.broadcast_arrays(row, column, np.asarray(value, float))
            self._entries.append((rows.ravel() + self.rows, columns.ravel(), coefficients.ravel()))
        low, high = (np.broadcast_to(np.asarray(bound, float), count) for bound in (lower, upper))
        self._bounds.append((low, high))
        self.families.append(RowFamily(family, self.rows, self.rows + count, words))
        self.rows += count

    def program(self) -> LinearProgram:
        """Return the program built so far; entries of the same row and column are summed."""
        cost, upper, integral = map(np.concatenate, zip(*self._variables, strict=True))
        no_entries = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        entries = self._entries or [no_entries]
        entry_row, entry_column, entry_value = map(np.concatenate, zip(*entries, strict=True))
        # Entries of one row and column have the same position. Sum them, and drop sums of 0.
        width = max(1, self.count)
        positions, index = np.unique(entry_row * width + entry_column, return_inverse=True)
        sums = np.bincount(index, entry_value, len(positions))
        row, column = np.divmod(positions[sums != 0], width)
        # Values are sorted by row. Row r begins at value ``begins[r]``.
        begins = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=self.rows))])
        row_lower, row_upper = map(np.concatenate, zip(*self._bounds, strict=True))
        return LinearProgram(
            cost=cost,
            lower=np.zeros(self.count),
            upper=upper,
            whole=integral,
            begins=begins,
            columns=column,
            values=sums[sums != 0],
            row_lower=row_lower,
            row_upper=row_upper,
        )
