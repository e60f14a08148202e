"""Set replicas by the time of day or week (methods.md D3)."""

from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
from pydantic import Field

from planner.policies.base import Group, LoadFactor, Policy, Traits, TunedParameter
from planner.policies.builtin.forecast_plan import LOAD, plan_follower
from planner.policies.builtin.guarded_plan import guarded_by_load
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import ROLES, Count, Name, Role, Section
from simulation.arrays import IntArray
from simulation.fleet import Pool
from simulation.policies.periodic import DAY_S, PeriodicSchedule
from simulation.policies.schedule_follower import ScheduleFollower

DAYS = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS = get_args(DAYS)
WEEK_S = 7 * DAY_S
MONDAY_S = 4 * DAY_S  # 5 January 1970, epoch seconds
MOST_STEPS = 10_000


class TimetableStep(Section):
    """Replicas from a time of day (UTC) on, for the selected pools."""

    day: DAYS | None = None  # default: every day
    at: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]  # "08:00", in quotes
    replicas: Count
    model: Name | None = None  # default of this and the next three: all
    region: Name | None = None
    gpu: Name | None = None
    role: Role | None = None

    def starts_s(self) -> list[float]:
        """Return the times from which the step applies, in seconds since Monday 00:00 UTC."""
        days = range(7) if self.day is None else [WEEKDAYS.index(self.day)]
        second_of_day = int(self.at[:2]) * 3600.0 + int(self.at[3:]) * 60.0
        return [day * DAY_S + second_of_day for day in days]

    def applies_to(self, pool: Pool) -> bool:
        """Return whether the model, region, GPU and role of the step include ``pool``."""
        return (
            self.model in (None, pool.model)
            and self.region in (None, pool.region)
            and self.gpu in (None, pool.gpu.name)
            and (self.role is None or ROLES[self.role] == pool.role)
        )


class Periodic(Policy):
    """Set replicas by the time of day. Without a timetable, plan for the day before."""

    kinds: ClassVar = {
        "periodic": Traits(
            "Replica schedule",
            "Replays a given schedule. Without one, plans for the previous day's demand.",
            Group.FIXED,
            complexity=10,
        )
    }

    name: Literal["periodic"]
    # Rows of at (UTC), replicas, and day, model, region, gpu, role.
    timetable: Annotated[list[TimetableStep], Field(max_length=MOST_STEPS)] = []
    load_factor: LoadFactor = 1.0  # factor on the demand of the day before
    guard: bool = False  # add the guard of lt-g

    @property
    def title(self) -> str:
        return super().title + " + reactive guard" * self.guard

    @property
    def tuned_parameter(self) -> TunedParameter | None:
        return None if self.timetable else LOAD

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the policy that follows the timetable, or without one the plan for the day before.

        Steps of the timetable apply from their time on, week after week.
        """
        if not self.timetable:
            return plan_follower(context, context.plan_of_day_before(self.load_factor), self.key)
        steps = [(start_s, step) for step in self.timetable for start_s in step.starts_s()]
        # The sort is stable: of several rows for one moment, the last in the timetable counts.
        steps.sort(key=lambda start_and_step: start_and_step[0])
        current, pools = context.today, context.fleet(context.today).pools
        counts: dict[float, IntArray] = {}  # replicas of each pool from a time of the week on
        # The second round replaces the counts of the first, which began with today's instead of
        # those that still apply from Sunday on.
        for start_s, step in [*steps, *steps]:
            applies = [step.applies_to(pool) for pool in pools]
            current = np.where(applies, step.replicas, current)
            counts[start_s] = current
        schedule = PeriodicSchedule(
            np.array(list(counts)),
            np.array(list(counts.values())),
            offset_s=(context.start_s - MONDAY_S) % WEEK_S,
            day_s=WEEK_S,
        )
        start = schedule.reset(context.fleet(current))
        if self.guard:
            return guarded_by_load(context, schedule, start, self.key)
        return context.starting_from(ScheduleFollower(schedule, self.key), start)
