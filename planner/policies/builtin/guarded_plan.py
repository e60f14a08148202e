"""Follow a plan as the lower limit, with a reactive guard that can add instances (LT-G)."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from planner.policies.base import (
    Above,
    Factor,
    Group,
    Interval,
    LoadFactor,
    Policy,
    Style,
    Traits,
    TunedParameter,
    factors,
)
from planner.policies.context import BuiltPolicy, FollowedPlan, Plan, PolicyContext, Pressure
from planner.schema_types import Count, Delay
from simulation.arrays import FloatArray, IntArray
from simulation.policies.feedback import TTFT
from simulation.policies.guarded_plan import GuardedPlan as Rule
from simulation.policies.parts.schedule import FixedSchedule, Schedule
from simulation.policies.parts.service_controller import DECODE

# A low floor relies on the guard, which reacts one cold start late.
FLOOR = TunedParameter("load_factor", factors(0.6, 4.0, 20))


class Guarded(Policy):
    """A floor, and a reactive guard that adds replicas to it.

    The floor is a plan or a static fleet, times ``load_factor``. The trigger is ``target_factor``
    times the load that a replica is rated for. The guard also acts if more requests are late than
    the tiers allow, so it corrects a profile that is too fast. Without a guard, the floor is a plan
    (lt-i) or a static fleet; with a low floor, the policy is reactive.
    """

    kinds: ClassVar = {
        "lt-g": Traits(
            "Forecast plan + reactive guard",
            "Follows the plan. Adds replicas while load is high or requests are late.",
            Group.PLANNED,
            complexity=25,
            plan=Plan(),
            may_exceed_plan=True,
            always=True,
            style=Style("blue", "dash", 2.0),
        ),
        "flat-g": Traits(
            "Static fleet + reactive guard",
            "Keeps a static fleet. Adds replicas while load is high or requests are late.",
            Group.REACTIVE,
            complexity=12,
            may_exceed_plan=True,
            always=True,
            style=Style("grey", "dashdot", 2.0),
        ),
    }

    name: Literal["lt-g", "flat-g"]
    load_factor: LoadFactor = 1.0  # factor on the forecast, or on the static fleet
    target_factor: Above = 1.0  # factor on the pressure test
    tolerance: Factor = Rule.tolerance  # load above the plan that the guard ignores
    rise_s: Delay = Rule.rise_s  # seconds that a reason must last
    fall_s: Delay = Rule.fall_s  # seconds before added replicas stop
    scale_up_factor: Factor = Rule.scale_up_factor  # largest growth per 15 s
    scale_up_instances: Count = Rule.scale_up_instances  # or this many replicas per 15 s
    interval_s: Interval = Rule.interval_s  # seconds between decisions

    @property
    def tuned_parameter(self) -> TunedParameter:
        return FLOOR

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the plan or static fleet as a floor, with the guard that adds replicas to it."""
        # The guard adds to a plan, or to a static fleet.
        followed: FollowedPlan | None = None
        if self.traits.plan is not None:
            plan = replace(self.traits.plan, load_factor=self.load_factor)
            followed = context.followed_plan(plan)
            schedule, start = followed.schedule, followed.start
        else:
            fleet = context.deployable_static() * self.load_factor
            start = np.ceil(fleet - 1e-9).astype(np.int64)
            schedule = FixedSchedule([0.0], start[None])
        guarded = guarded_by_load(
            context, schedule, start, self.key, self.target_factor, **self.fields_for(Rule)
        )
        return replace(guarded, keeps_floor=True, plan=followed.plan if followed else None)


def guarded_by_load(
    context: PolicyContext,
    schedule: Schedule,
    start: IntArray,
    key: str,
    target_factor: float = 1.0,
    **fields: Any,
) -> BuiltPolicy:
    """Return the policy ``key``: ``schedule`` with a reactive guard, from ``start [pools]`` on.

    For ``target_factor`` see ``Guarded``; ``fields`` are those of the rule, by default its own.
    """
    # Capacity per instance in pools of 1 to N instances, ``[pool, N]``.
    per_instance = context.capacity_tps / np.arange(1, context.capacity_tps.shape[1] + 1)
    # The targets are readings of a pressure test. An instance of the largest pool has more capacity
    # than in the test, so they scale with it.
    pressure = context.pressure_among_many()
    large_tps = per_instance[:, -1]
    relative_rate = np.divide(
        large_tps, pressure.rate_tps, out=np.ones_like(large_tps), where=large_tps > 0
    )
    factor = np.where(np.isfinite(relative_rate), relative_rate, 1.0) * target_factor
    allowed_requests = pressure.metric_targets("concurrency") + _allowed_queue(context, pressure)
    # The same as a share of that in the largest pool; 1 without capacity.
    in_largest = per_instance[:, -1:]
    capacity_shares = np.divide(
        per_instance, in_largest, out=np.ones_like(per_instance), where=in_largest > 0
    )
    policy = Rule(
        schedule,
        prefill_tps=pressure.signal_targets("prefill-tps") * factor,
        decode_tps=pressure.signal_targets("decode-tps") * factor,
        in_flight=allowed_requests * factor,
        shares=capacity_shares,
        name=key,
        **fields,
    )
    return replace(context.starting_from(policy, start), work_done=0.5, guard=policy)


def _allowed_queue(context: PolicyContext, pressure: Pressure) -> FloatArray:
    """Return how many requests may queue at an instance and still meet the TTFT limit, ``[pools]``.

    It is the number of requests of mean length that an instance prefills within the model's
    tightest limit, at the rate ``pressure``. It is 0 for decode pools.
    """
    fleet = context.fleet(context.today)
    limit_s = np.nan_to_num(context.tightest_s(TTFT))
    prompts_per_s = pressure.signal_targets("prefill-tps") / [isl for isl, _ in context.lengths]
    is_decode = np.array([pool.role == DECODE for pool in fleet.pools])
    return np.where(is_decode, 0.0, prompts_per_s * limit_s)
