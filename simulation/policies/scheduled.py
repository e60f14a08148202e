"""Follow a schedule at once, fixed or planned period by period (methods.md E8, LT-I)."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.schedule import ByClock, Course
from simulation.policies.parts.step_function import Counts, Times
from simulation.policy import Actions, Observation, ScalingPolicy


@dataclass(eq=False)
class Scheduled(ScalingPolicy):
    """Keep ``targets[i]`` instances per pool from ``times_s[i]`` on (LT-I: immediately).

    ``times_s [periods]`` must increase; ``targets`` has the shape ``[periods, pools]``. Before the
    first period the fleet keeps its initial instances. A step takes effect at the first scaling
    decision at or after it. ``lent [periods, pools]`` of the targets are lent as spot and serve
    nothing (E9). ``shares [periods, models, regions, regions]`` tells which region serves the
    tokens of each home region. ``course`` replaces all these.
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
