"""Follow a schedule at once, fixed or planned period by period (methods.md E8, LT-I)."""

from dataclasses import dataclass

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.schedule import Counts, FixedSchedule, Schedule, Times, hold_step
from simulation.policy import Actions, Hold, Observation, ScalingPolicy


@dataclass(eq=False)
class ScheduleFollower(ScalingPolicy):
    """Keep ``targets[i]`` instances per pool from ``times_s[i]`` on (LT-I: immediately).

    A step takes effect at the first scaling decision at or after it. For ``times_s``, ``targets``,
    ``lent`` and ``shares`` see ``FixedSchedule``. If there is a ``schedule``, it is followed and
    these arguments are ignored.
    """

    times_s: Times = ()
    targets: Counts = ()
    name: str = "lt-i"
    interval_s: float = 60.0
    lent: IntArray | None = None
    shares: FloatArray | None = None
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        self._schedule = self.schedule or FixedSchedule(
            self.name, self.times_s, self.targets, self.lent, self.shares
        )

    def reset(self, fleet: Fleet) -> IntArray:
        return self._schedule.reset(fleet)

    def decide(self, observation: Observation) -> IntArray | Actions:
        """Return the present step as actions. Its targets exclude instances that it lends."""
        self._schedule.observe(observation)
        step = self._schedule.step_at(observation.time_s)
        if step.lent is None:
            return Actions(step.counts.copy(), shares=step.shares, release_tokens=step.release)
        return Actions(
            step.counts - step.lent, lend=step.lent > 0, keep_lent=step.lent, shares=step.shares,
            release_tokens=step.release,
        )  # fmt: skip

    def hold(self, time_s: float) -> Hold | None:
        return hold_step(self._schedule, time_s)
