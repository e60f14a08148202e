"""Instance counts by the time of day (methods.md D3, "periodic"; HeteroScale, section 4.3)."""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.schedule import ScheduleStep
from simulation.policy import Observation

DAY_S = 86_400.0


@dataclass(eq=False)
class PeriodicSchedule:
    """Repeat a daily schedule: ``counts[i]`` instances from ``times_s[i]`` seconds of a day on.

    ``times_s [steps]`` increases and lies in ``[0, day_s)``; ``counts`` has the shape ``[steps,
    pools]``. Before the first step of a day, the last step of the day before applies. The
    simulation begins ``offset_s`` seconds after the start of a day.
    """

    times_s: FloatArray
    counts: IntArray
    offset_s: float = 0.0
    day_s: float = DAY_S

    def reset(self, fleet: Fleet) -> IntArray:
        return self.step_at(0.0).counts

    def observe(self, observation: Observation) -> None:
        pass

    def step_at(self, time_s: float) -> ScheduleStep:
        # Before the first step the index is -1: the last step of the day before.
        return ScheduleStep(self.counts[self._next_step(time_s) - 1].copy())

    def next_change_s(self, time_s: float) -> float:
        next_step = self._next_step(time_s)
        is_last = next_step == len(self.times_s)
        change_s = self.times_s[0] + self.day_s if is_last else self.times_s[next_step]
        return time_s + float(change_s) - self._time_of_day_s(time_s)

    def _next_step(self, time_s: float) -> int:
        """Return the index of the day's first step after ``time_s`` of the simulation."""
        return int(np.searchsorted(self.times_s, self._time_of_day_s(time_s), side="right"))

    def _time_of_day_s(self, time_s: float) -> float:
        return (time_s + self.offset_s) % self.day_s
