"""Instance counts by the time of day (methods.md D3, "periodic"; HeteroScale, section 4.3)."""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.schedule import Counts, Steps, Times
from simulation.policy import Observation, ScalingPolicy

DAY_S = 86_400.0


@dataclass(eq=False)
class Periodic(ScalingPolicy):
    """Repeat a daily schedule: ``counts[i]`` instances from ``times_s[i]`` seconds of a day on.

    ``times_s [steps]`` must increase and lie in ``[0, day_s)``; ``counts`` has the shape ``[steps,
    pools]``. Before the first step of a day, the last step of the day before applies. The
    simulation begins ``offset_s`` seconds after the start of a day.
    """

    times_s: Times
    counts: Counts
    offset_s: float = 0.0
    day_s: float = DAY_S
    interval_s: float = 60.0
    name: str = "periodic"

    def __post_init__(self) -> None:
        self._steps = Steps(self.name, "counts", self.times_s, self.counts)
        times_s = self._steps.times_s
        if not len(times_s) or not np.all((times_s >= 0) & (times_s < self.day_s)):
            raise SimulationError(
                f"Policy {self.name!r}: times_s must lie within a day of {self.day_s:g} s, and "
                "there must be one."
            )

    def reset(self, fleet: Fleet) -> IntArray:
        self._steps.reset(fleet)
        return self._counts_at(0.0)

    def decide(self, observation: Observation) -> IntArray:
        return self._counts_at(observation.time_s)

    def _counts_at(self, time_s: float) -> IntArray:
        """Return the counts at ``time_s`` of the simulation, ``[pools]``."""
        # Before the first step of a day the index is -1: the last step of the day before.
        step = self._steps.step((time_s + self.offset_s) % self.day_s)
        counts: IntArray = self._steps.counts[step].copy()
        return counts
