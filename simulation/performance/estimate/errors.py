"""The errors of estimates on measured deployments: the median and the 90th percentile.

Cells are by mode, load, engine and whether the deployment drafts tokens. The most specific cell
with enough rows applies to a deployment.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

LOADS = {"low": 16.0, "middle": 128.0, "high": np.inf}  # requests in flight, at most


@dataclass(frozen=True, slots=True)
class Cell:
    """Median (``tbt``, ``ttft``) and 90th percentile of the relative errors of measured rows.

    A cell has ``rows`` rows of deployments that are alike.
    """

    tbt: float
    tbt_90: float
    ttft: float
    ttft_90: float
    rows: int


@dataclass(frozen=True, slots=True)
class CellSelector:
    """Properties of a deployment that select the cell of its errors."""

    split: bool
    users: float
    engine: str
    drafts: bool  # it drafts tokens

    def names(self) -> Iterator[str]:
        """Yield the names of the matching cells, the most specific first."""
        mode = "disagg" if self.split else "agg"
        load = next(name for name, max_users in LOADS.items() if self.users <= max_users)
        drafts = "drafts" if self.drafts else "plain"
        yield f"{mode} {load} {self.engine} {drafts}"
        yield f"{mode} {load} {drafts}"
        yield f"{mode} {drafts}"
        yield mode


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """Errors of the estimates against measurements, by cell; cells with too few rows are absent."""

    cells: Mapping[str, Cell]  # by the names that ``CellSelector.names`` yields

    def of(self, where: CellSelector) -> tuple[str, Cell]:
        """Return the name and the errors of the most specific cell that matches ``where``."""
        key = next(key for key in where.names() if key in self.cells)
        return key, self.cells[key]
