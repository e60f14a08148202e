"""The same number of instances all day: the baseline that every other policy must beat."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policy import Hold, Observation, ScalingPolicy


@dataclass(eq=False)
class Static(ScalingPolicy):
    """Keep ``counts`` instances per pool all the time, in the order of the fleet's pools."""

    counts: Sequence[int] | IntArray
    name: str = "flat"
    interval_s: float = 60.0

    def __post_init__(self) -> None:
        self._counts = np.array(self.counts, np.int64)

    def reset(self, fleet: Fleet) -> IntArray:
        return self._counts.copy()

    def decide(self, observation: Observation) -> IntArray:
        return self._counts.copy()

    def hold(self, time_s: float) -> Hold:
        return Hold(np.inf, self._counts)
