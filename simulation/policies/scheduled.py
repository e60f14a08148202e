"""Instance counts by the clock: how a plan is played out (methods.md E8, LT-I)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policy import Actions, Observation, check_columns


class Scheduled:
    """From ``times_s[i]`` on, ``targets[i]`` instances per pool, at once (LT-I: immediately).

    ``times_s`` has shape ``[periods]`` and must increase; ``targets`` has shape ``[periods,
    pools]``. Before the first period the fleet's initial counts hold. A step takes effect at the
    first control instant at or after it. Of the targets ``lent`` ``[periods, pools]`` are lent out
    as spot and serve nothing (E9); the first period's from the first control instant on.
    """

    def __init__(
        self,
        times_s: Sequence[float] | FloatArray,
        targets: Sequence[Sequence[int]] | IntArray,
        name: str = "lt-i",
        interval_s: float = 60.0,
        lent: IntArray | None = None,
    ) -> None:
        self._times_s = np.array(times_s, np.float64)
        self._targets = np.array(targets, np.int64)
        self._lent = None if lent is None else np.array(lent, np.int64)
        self._name = name
        self._interval_s = interval_s
        self._initial = np.zeros(0, np.int64)
        if self._targets.ndim != 2 or len(self._targets) != len(self._times_s):
            raise SimulationError(f"Policy {name!r}: targets must be periods by pools.")
        if self._lent is not None and not (
            self._lent.shape == self._targets.shape and np.all(self._lent <= self._targets)
        ):
            raise SimulationError(f"Policy {name!r}: lent must be part of the targets.")
        if np.any(np.diff(self._times_s) <= 0):
            raise SimulationError(f"Policy {name!r}: times_s must increase.")

    @property
    def name(self) -> str:
        return self._name

    @property
    def interval_s(self) -> float:
        return self._interval_s

    def reset(self, fleet: Fleet) -> IntArray:
        check_columns(self._name, "targets", self._targets, fleet)
        self._initial = np.array([pool.initial for pool in fleet.pools], np.int64)
        return self._at(0.0)

    def decide(self, observation: Observation) -> IntArray | Actions:
        targets, period = self._at(observation.time_s), self._period(observation.time_s)
        if self._lent is None:
            return targets
        lent = np.zeros_like(targets) if period < 0 else self._lent[period].copy()
        return Actions(targets - lent, lend=lent > 0, keep_lent=lent)

    def _period(self, time_s: float) -> int:
        return int(np.searchsorted(self._times_s, time_s, side="right")) - 1

    def _at(self, time_s: float) -> IntArray:
        period = self._period(time_s)
        return self._initial.copy() if period < 0 else self._targets[period].copy()
