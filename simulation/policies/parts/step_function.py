"""Counts that change at given times, the base of every schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import initial_counts

Times = Sequence[float] | FloatArray
Counts = Sequence[Sequence[int]] | IntArray


class Steps:
    """``counts[i]`` from ``times_s[i]`` on; the fleet's initial instances before the first.

    Shapes are ``[steps]``, increasing, and ``[steps, pools]``. Raises SimulationError, naming
    ``policy``, for other shapes.
    """

    def __init__(self, policy: str, what: str, times_s: Times, counts: Counts) -> None:
        self._policy, self._what = policy, what
        self.times_s = np.array(times_s, np.float64)
        self.counts = np.array(counts, np.int64)
        if self.counts.ndim != 2 or len(self.counts) != len(self.times_s):
            raise SimulationError(f"Policy {policy!r}: {what} must be steps by pools.")
        if np.any(np.diff(self.times_s) <= 0):
            raise SimulationError(f"Policy {policy!r}: times_s must increase.")

    def reset(self, fleet: Fleet) -> None:
        """Raise SimulationError unless there is a column per pool of ``fleet``."""
        if self.counts.shape[1] != len(fleet.pools):
            raise SimulationError(
                f"Policy {self._policy!r} has {self._what} for {self.counts.shape[1]} pools, the "
                f"fleet has {len(fleet.pools)}; give one column per pool."
            )
        self._initial = initial_counts(fleet)

    def step(self, time_s: float) -> int:
        """Return the index of the current step, -1 before the first."""
        return int(np.searchsorted(self.times_s, time_s, side="right")) - 1

    def at(self, time_s: float) -> IntArray:
        step = self.step(time_s)
        counts: IntArray = self._initial if step < 0 else self.counts[step]
        return counts.copy()
