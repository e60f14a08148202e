"""Follow a schedule at once, fixed or planned period by period (methods.md E8, LT-I)."""

from dataclasses import dataclass

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.schedule import Schedule, hold_step
from simulation.policy import Actions, Hold, Observation, ScalingPolicy


@dataclass(eq=False)
class ScheduleFollower(ScalingPolicy):
    """Keep the instances of ``schedule`` (LT-I: immediately).

    A step takes effect at the first scaling decision at or after it.
    """

    schedule: Schedule
    name: str = "lt-i"
    interval_s: float = 60.0

    def reset(self, fleet: Fleet) -> IntArray:
        return self.schedule.reset(fleet)

    def decide(self, observation: Observation) -> IntArray | Actions:
        """Return the present step as actions. Its targets exclude instances that it lends."""
        self.schedule.observe(observation)
        step = self.schedule.step_at(observation.time_s)
        if step.lent is None:
            return Actions(step.counts.copy(), shares=step.shares, release_tokens=step.release)
        return Actions(
            step.counts - step.lent, lend=step.lent > 0, keep_lent=step.lent, shares=step.shares,
            release_tokens=step.release,
        )  # fmt: skip

    def hold(self, time_s: float) -> Hold | None:
        return hold_step(self.schedule, time_s)
