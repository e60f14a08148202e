"""Instance counts by the time of day (methods.md D3, "periodic"; HeteroScale, section 4.3)."""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policy import Observation, ScalingPolicy

DAY_S = 86_400.0


@dataclass(eq=False)
class Periodic(ScalingPolicy):
    """Repeat a daily schedule: ``counts[i]`` instances from ``times_s[i]`` seconds of a day on.

    ``times_s [steps]`` increases and lies in ``[0, day_s)``; ``counts`` has the shape ``[steps,
    pools]``. Before the first step of a day, the last step of the day before applies. The
    simulation begins ``offset_s`` seconds after the start of a day.
    """

    times_s: FloatArray
    counts: IntArray
    offset_s: float = 0.0
    day_s: float = DAY_S
    interval_s: float = 60.0
    name: str = "periodic"

    def reset(self, fleet: Fleet) -> IntArray:
        return self._counts_at(0.0)

    def decide(self, observation: Observation) -> IntArray:
        return self._counts_at(observation.time_s)

    def _counts_at(self, time_s: float) -> IntArray:
        """Return the counts at ``time_s`` of the simulation, ``[pools]``."""
        time_of_day_s = (time_s + self.offset_s) % self.day_s
        # Before the first step of a day the index is -1: the last step of the day before.
        step = int(np.searchsorted(self.times_s, time_of_day_s, side="right")) - 1
        counts: IntArray = self.counts[step].copy()
        return counts
