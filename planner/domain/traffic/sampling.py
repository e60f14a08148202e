"""State how far the demand of a sampled trace may be from the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.window import HOUR_S
from planner.inputs.ingest.report import sampling_error
from planner.inputs.ingest.store import read_demand, read_requests
from simulation.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Sample:
    """A trace that holds one in ``one_in`` requests, so its demand is uncertain."""

    name: str
    one_in: float
    rows: float  # requests in the file
    busiest: float  # requests of one series in the busiest hour of the file

    @classmethod
    def of(cls, trace: StoredTrace) -> Sample:
        """Return the sample that a stored trace is: its requests in all and in the busiest hour."""
        total, busiest = 0.0, 0.0
        for rows, bin_s in _counts(trace):
            edges = np.arange(0, len(rows), max(1, round(HOUR_S / bin_s)))
            total += float(rows.sum())
            busiest = max(busiest, float(np.add.reduceat(rows, edges).max()))
        return cls(trace.name, trace.sample, total, busiest)

    @property
    def words(self) -> str:
        """Describe the sample and its error in total and in the busiest hour."""
        total, hour = (sampling_error(rows, self.one_in) for rows in (self.rows, self.busiest))
        return (
            f"one in {self.one_in:g} requests; error ±{total:.1%} in total, ±{hour:.0%} in the "
            "busiest hour (95%)"
        )


def _counts(trace: StoredTrace) -> Iterator[tuple[FloatArray, float]]:
    """Yield requests per bin and the bin width (s) of a log, or of each series of counts."""
    if trace.kind == "requests":
        arrival_s = read_requests(trace.store, ("arrival_s",)).arrival_s
        if arrival_s is None:
            raise ValueError("arrivals must have been read")
        yield np.bincount((arrival_s // HOUR_S).astype(np.int64)).astype(np.float64), HOUR_S
        return
    for series in read_demand(trace.store):  # scaled up to all requests when it was stored
        yield np.nan_to_num(series.requests) / trace.sample, series.bin_s
