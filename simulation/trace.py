"""A request log in columns: the hand-over from ingest or synthesis to the simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
CodeArray = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival; every column has shape ``[requests]``.

    ``model``, ``region`` (home region, where the request enters) and ``tier`` are codes into the
    tuples of names beside them.
    """

    arrival_s: FloatArray  # seconds after start_s, not decreasing
    input_tokens: IntArray  # ISL, at least 1
    output_tokens: IntArray  # OSL, at least 1: the first comes out of the prefill
    model: CodeArray
    region: CodeArray
    tier: CodeArray
    models: tuple[str, ...]
    regions: tuple[str, ...]
    tiers: tuple[str, ...]
    start_s: float  # UTC epoch seconds of arrival_s == 0
    provenance: str = "measured"  # or "synthesised from ..."

    def __post_init__(self) -> None:
        kinds = {
            "arrival_s": np.float64,
            "input_tokens": np.int32,
            "output_tokens": np.int32,
            "model": np.int16,
            "region": np.int16,
            "tier": np.int16,
        }
        for name, kind in kinds.items():
            column = np.ascontiguousarray(getattr(self, name), dtype=kind)
            if column.shape != (len(self.arrival_s),):
                raise SimulationError(f"Trace column {name} must have one value per request.")
            if column is getattr(self, name):
                column = column.view()  # freeze our view, not the caller's array
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        if len(self.arrival_s) and np.any(np.diff(self.arrival_s) < 0):
            raise SimulationError("Trace arrivals must not decrease; sort the requests first.")
        for name, names in (("model", self.models), ("region", self.regions), ("tier", self.tiers)):
            codes = getattr(self, name)
            if len(codes) and (codes.min() < 0 or codes.max() >= len(names)):
                raise SimulationError(f"Trace column {name} holds a code without a name.")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        return float(self.arrival_s[-1]) if len(self) else 0.0

    def rows(self, keep: slice | npt.NDArray[np.bool_]) -> Trace:
        """The requests that ``keep`` picks, in the same order and on the same clock."""
        return replace(
            self,
            arrival_s=self.arrival_s[keep],
            input_tokens=self.input_tokens[keep],
            output_tokens=self.output_tokens[keep],
            model=self.model[keep],
            region=self.region[keep],
            tier=self.tier[keep],
        )

    def window(self, start_s: float, end_s: float) -> Trace:
        """Requests arriving in ``[start_s, end_s)`` (epoch seconds), re-based to ``start_s``."""
        lo, hi = np.searchsorted(self.arrival_s, [start_s - self.start_s, end_s - self.start_s])
        inside = self.rows(slice(int(lo), int(hi)))
        shifted = inside.arrival_s - (start_s - self.start_s)
        return replace(inside, arrival_s=shifted, start_s=start_s)
