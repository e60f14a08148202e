"""Instance counts by the time of day (methods.md D3, "periodic"; HeteroScale, section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policy import Observation, check_columns

DAY_S = 86_400.0


class Periodic:
    """From ``times_s[i]`` seconds after the start of every ``day_s`` on, ``counts[i]`` instances.

    ``times_s`` has shape ``[steps]``, must increase and lie in ``[0, day_s)``; ``counts`` has shape
    ``[steps, pools]``. Before the first step of a day the last one's counts hold. The simulation
    begins ``offset_s`` into a day. A timetable looks at nothing: it is what an operator writes down
    once, or what was learnt from the day before.
    """

    def __init__(
        self,
        times_s: Sequence[float] | FloatArray,
        counts: Sequence[Sequence[int]] | IntArray,
        *,
        offset_s: float = 0.0,
        day_s: float = DAY_S,
        interval_s: float = 60.0,
        name: str = "periodic",
    ) -> None:
        self._times_s = np.array(times_s, np.float64)
        self._counts = np.array(counts, np.int64)
        self._offset_s, self._day_s = offset_s, day_s
        self._interval_s, self._name = interval_s, name
        if (
            self._counts.ndim != 2
            or len(self._counts) != len(self._times_s)
            or not len(self._counts)
        ):
            raise SimulationError(f"Policy {name!r}: counts must be steps by pools.")
        inside = (self._times_s >= 0) & (self._times_s < day_s)
        if np.any(np.diff(self._times_s) <= 0) or not inside.all():
            raise SimulationError(
                f"Policy {name!r}: times_s must increase and lie within a day of {day_s:g} s."
            )

    @property
    def name(self) -> str:
        return self._name

    @property
    def interval_s(self) -> float:
        return self._interval_s

    def reset(self, fleet: Fleet) -> IntArray:
        check_columns(self._name, "counts", self._counts, fleet)
        return self._at(0.0)

    def decide(self, observation: Observation) -> IntArray:
        return self._at(observation.time_s)

    def _at(self, time_s: float) -> IntArray:
        of_day = (time_s + self._offset_s) % self._day_s
        # Index -1 before the first step: the last one of the day before.
        step = int(np.searchsorted(self._times_s, of_day, side="right")) - 1
        counts: IntArray = self._counts[step].copy()
        return counts
