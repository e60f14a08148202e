"""A plan followed at once, by the clock or as it is decided (methods.md E8, LT-I)."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.course import ByClock, Course
from simulation.policies.parts.steps import Counts, Times
from simulation.policy import Actions, Observation, ScalingPolicy


@dataclass(eq=False)
class Scheduled(ScalingPolicy):
    """From ``times_s[i]`` on, ``targets[i]`` instances per pool, at once (LT-I: immediately).

    ``times_s`` has shape ``[periods]`` and must increase; ``targets`` has shape ``[periods,
    pools]``. Before the first period the fleet's initial counts hold. A step takes effect at the
    first control instant at or after it. Of the targets ``lent`` ``[periods, pools]`` are lent out
    as spot and serve nothing (E9), and home regions' tokens are served by ``shares`` ``[periods,
    models, regions, regions]``; the first period's from the first control instant on. A ``course``
    stands in place of all these.
    """

    times_s: Times = ()
    targets: Counts = ()
    name: str = "lt-i"
    interval_s: float = 60.0
    lent: IntArray | None = None
    shares: FloatArray | None = None
    course: Course | None = None

    def __post_init__(self) -> None:
        self._course = self.course or ByClock(
            self.name, self.times_s, self.targets, self.lent, self.shares
        )

    def reset(self, fleet: Fleet) -> IntArray:
        return self._course.reset(fleet)

    def decide(self, observation: Observation) -> IntArray | Actions:
        self._course.see(observation)
        step = self._course.asked(observation.time_s)
        if step.lent is None:
            return Actions(step.counts.copy(), shares=step.shares)
        return Actions(
            step.counts - step.lent,
            lend=step.lent > 0,
            keep_lent=step.lent,
            shares=step.shares,
        )
