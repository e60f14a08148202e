"""Hold rows between a file and the store, with their line numbers and text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from simulation.arrays import BoolArray, IntArray

BAD_IDS = "hash_ids not a list of whole numbers"


def has_null_id(ids: pl.Series) -> BoolArray:
    """Return a mask of the rows with a null element in their list of ids, ``[rows]``."""
    has_null = ids.list.eval(pl.element().is_null()).list.any()
    return has_null.fill_null(False).to_numpy()


@dataclass(frozen=True, slots=True, eq=False)
class RefusedRows:
    """Rows refused for one reason; ``text(i)`` returns the row of ``lines[i]`` as written."""

    reason: str
    lines: IntArray
    text: Callable[[int], str]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A batch of rows, in the order of the file.

    ``frame`` has the parsed rows, ``lines`` ``[rows]`` their line numbers. ``text(i)`` returns row
    i as written. ``faults`` are the rows that could not be parsed.
    """

    frame: pl.DataFrame
    lines: IntArray
    text: Callable[[int], str]
    faults: tuple[RefusedRows, ...] = ()

    def refuse(self, reason: str, mask: BoolArray) -> RefusedRows:
        """Return the rows in ``mask`` as refused for ``reason``."""
        rows, text = np.flatnonzero(mask), self.text
        return RefusedRows(reason, self.lines[rows], lambda i: text(int(rows[i])))

    def select(self, mask: BoolArray) -> Batch:
        """Return only the rows in ``mask``, without the faults."""
        rows, text = np.flatnonzero(mask), self.text
        return Batch(self.frame.filter(mask), self.lines[rows], lambda i: text(int(rows[i])))
