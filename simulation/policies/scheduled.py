"""Instance counts by the clock: how a plan is played out (methods.md E8, LT-I)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.steps import Counts, Steps, Times
from simulation.policy import Actions, Observation, ScalingPolicy


@dataclass(eq=False)
class Scheduled(ScalingPolicy):
    """From ``times_s[i]`` on, ``targets[i]`` instances per pool, at once (LT-I: immediately).

    ``times_s`` has shape ``[periods]`` and must increase; ``targets`` has shape ``[periods,
    pools]``. Before the first period the fleet's initial counts hold. A step takes effect at the
    first control instant at or after it. Of the targets ``lent`` ``[periods, pools]`` are lent out
    as spot and serve nothing (E9); the first period's from the first control instant on.
    """

    times_s: Times
    targets: Counts
    name: str = "lt-i"
    interval_s: float = 60.0
    lent: IntArray | None = None

    def __post_init__(self) -> None:
        self._steps = Steps(self.name, "targets", self.times_s, self.targets)
        self._lent = None if self.lent is None else np.array(self.lent, np.int64)
        targets = self._steps.counts
        if self._lent is not None and not (
            self._lent.shape == targets.shape and np.all(self._lent <= targets)
        ):
            raise SimulationError(f"Policy {self.name!r}: lent must be part of the targets.")

    def reset(self, fleet: Fleet) -> IntArray:
        self._steps.reset(fleet)
        return self._steps.at(0.0)

    def decide(self, observation: Observation) -> IntArray | Actions:
        targets = self._steps.at(observation.time_s)
        if self._lent is None:
            return targets
        period = self._steps.step(observation.time_s)
        lent = np.zeros_like(targets) if period < 0 else self._lent[period].copy()
        return Actions(targets - lent, lend=lent > 0, keep_lent=lent)
