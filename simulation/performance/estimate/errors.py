"""What estimates were off by on measured deployments: of half of them, and of nine in ten.

By mode, load, engine and whether the model has layers that draft tokens (measurements then often
do not say whether those were used). The closest cell with rows enough speaks; what it says is
shown with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from simulation.performance.estimate.calibration import ENGINES

LOADS = {"low": 16.0, "middle": 128.0, "high": np.inf}  # requests in flight, at most


@dataclass(frozen=True, slots=True)
class Cell:
    """Relative errors that half, and nine of ten, of ``rows`` measurements stay within."""

    tbt: float
    tbt_90: float
    ttft: float
    ttft_90: float
    rows: int


@dataclass(frozen=True, slots=True)
class Where:
    """Of one deployment, what its errors go by."""

    split: bool
    users: float
    engine: str
    drafts: bool  # the model has layers that draft tokens, and nothing is said of them

    def names(self) -> Iterator[str]:
        """Names of its cells, the closest first."""
        mode = "disagg" if self.split else "agg"
        load = next(name for name, most in LOADS.items() if self.users <= most)
        drafts = "drafts" if self.drafts else "plain"
        yield f"{mode} {load} {self.engine} {drafts}"
        yield f"{mode} {load} {drafts}"
        yield f"{mode} {drafts}"
        yield mode


@dataclass(frozen=True, slots=True)
class ErrorTable:
    cells: Mapping[str, Cell]  # by the first of ``Where.names`` that has rows enough

    def of(self, where: Where) -> tuple[str, Cell]:
        """The closest cell there is, with its name."""
        key = next(key for key in where.names() if key in self.cells)
        return key, self.cells[key]


def words(key: str, rows: int) -> str:
    """What a cell is of, in a sentence."""
    mode, *rest = key.split()
    parts = ["prefill and decode apart" if mode == "disagg" else "prefill and decode together"]
    if rest and rest[0] in LOADS:
        low, high = {"low": (0, 16), "middle": (16, 128), "high": (128, 0)}[rest[0]]
        parts.append(f"above {low} requests in flight" if not high else f"up to {high} in flight")
    parts += [name for name in rest if name in ENGINES]
    if "drafts" in rest:
        parts.append("models with layers that draft tokens, measured with or without them")
    return f"{rows:,} measured deployments ({', '.join(parts)})"
