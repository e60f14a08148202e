"""Rows on their way from a file to the store, with what is needed to say where they came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from simulation.arrays import BoolArray, IntArray

BAD_IDS = "hash_ids not a list of whole numbers"


def holes(ids: pl.Series) -> BoolArray:
    """Rows whose list of ids has an element that is no id, shape ``[rows]``."""
    empty = ids.list.eval(pl.element().is_null()).list.any()
    return empty.fill_null(False).to_numpy()


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """Rows refused for one reason; ``text(i)`` gives the row of ``lines[i]``."""

    reason: str
    lines: IntArray
    text: Callable[[int], str]

    def only(self, mask: Sequence[bool]) -> Fault:
        """The fault of some of its rows."""
        rows = np.flatnonzero(np.asarray(mask, dtype=np.bool_))
        return Fault(self.reason, self.lines[rows], lambda i: self.text(int(rows[i])))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows in the order of the file. ``lines`` has shape ``[rows]``; ``text(i)`` is row i as
    written; ``faults`` are the rows that could not be put into ``frame``."""

    frame: pl.DataFrame
    lines: IntArray
    text: Callable[[int], str]
    faults: tuple[Fault, ...] = ()
