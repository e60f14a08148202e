"""The same number of instances all day: the baseline every other policy has to beat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policy import Observation


class Flat:
    """``counts`` instances per pool of the fleet, in its order, from start to end."""

    def __init__(
        self, counts: Sequence[int] | IntArray, name: str = "flat", interval_s: float = 60.0
    ) -> None:
        self._counts = np.array(counts, np.int64)
        self._name = name
        self._interval_s = interval_s

    @property
    def name(self) -> str:
        return self._name

    @property
    def interval_s(self) -> float:
        return self._interval_s

    def reset(self, fleet: Fleet) -> IntArray:
        if len(self._counts) != len(fleet.pools):
            raise SimulationError(
                f"Policy {self._name!r} names {len(self._counts)} counts for "
                f"{len(fleet.pools)} pools; give one per pool."
            )
        return self._counts.copy()

    def decide(self, observation: Observation) -> IntArray:
        return self._counts.copy()
