"""Follow a plan immediately (methods.md E8, LT-I)."""

from dataclasses import replace
from typing import ClassVar, Literal

from planner.policies.base import Group, LoadFactor, Policy, Style, Traits, TunedParameter, factors
from planner.policies.context import BuiltPolicy, FollowedPlan, Plan, PolicyContext
from simulation.policies.schedule_follower import ScheduleFollower

LOAD = TunedParameter("load_factor", factors(0.5, 4.0, 22))  # a larger plan is dearer and safer


class Planned(Policy):
    """Follow the plan at once. lt-h plans all periods together."""

    kinds: ClassVar = {
        "lt-i": Traits(
            "Forecast plan",
            "Sets the planned replicas, regardless of utilization.",
            Group.PLANNED,
            complexity=21,
            plan=Plan(),
            style=Style("blue", width=2.5),
        ),
        "lt-h": Traits(
            "Forecast plan, all periods at once",
            "Optimizes all periods jointly, from one forecast.",
            Group.PLANNED,
            complexity=22,
            plan=Plan(periods="all"),
            style=Style("purple", "longdash", 2.0),
        ),
        "lt-i-last-value": Traits(
            "Forecast plan, last-value predictor",
            "Assumes that the next interval equals the last.",
            Group.PLANNED,
            complexity=20,
            plan=Plan("last-value"),
            style=Style("purple", "dashdot"),
        ),
        "lt-i-seasonal": Traits(
            "Forecast plan, day-before predictor",
            "Assumes that each bin equals the same bin a day before (seasonal naive).",
            Group.PLANNED,
            complexity=20,
            plan=Plan("seasonal-naive"),
            style=Style("green", "dashdot"),
        ),
        "lt-i-perfect": Traits(
            "Forecast plan, perfect forecast",
            "Oracle: the cheapest schedule found by simulation, with future data.",
            Group.PLANNED,
            complexity=31,
            plan=Plan("perfect"),
            reads_future=True,
            always=True,
            style=Style("sky"),
        ),
    }

    name: Literal["lt-i", "lt-h", "lt-i-last-value", "lt-i-seasonal", "lt-i-perfect"]
    load_factor: LoadFactor = 1.0  # factor on the forecast

    @property
    def tuned_parameter(self) -> TunedParameter:
        return LOAD

    def build(self, context: PolicyContext) -> BuiltPolicy:
        assert self.traits.plan is not None
        plan = context.followed_plan(replace(self.traits.plan, load_factor=self.load_factor))
        built = plan_follower(context, plan, self.key)
        return replace(built, plan=plan.plan, keeps_floor=True)


def plan_follower(context: PolicyContext, plan: FollowedPlan, key: str) -> BuiltPolicy:
    """Return the policy ``key`` that follows ``plan``, from the plan's own initial fleet."""
    policy = ScheduleFollower(schedule=plan.schedule, name=key)
    # Planning took about half of the run's time.
    return replace(context.starting_from(policy, plan.start), work_done=0.5)
