"""Scale toward the plan's count when utilisation requires it (methods.md E8: LT-U, LT-UA)."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from planner.policies.base import Above, Factor, Group, LoadFactor, Traits, TunedParameter
from planner.policies.builtin.forecast_plan import LOAD
from planner.policies.builtin.reactive import Thresholds
from planner.policies.context import BuiltPolicy, Plan, PolicyContext
from planner.schema_types import Delay, Share
from simulation.policies.utilization_gated import Reading
from simulation.policies.utilization_gated import UtilizationGated as Rule


class _UtilizationGated(Thresholds):
    cooldown_s: Delay = Rule.cooldown_s  # seconds after a scaling event

    reads_forecast: ClassVar = False  # whether it compares arrivals with the plan's forecast

    load_factor: LoadFactor = 1.0  # factor on the forecast

    @property
    def tuned_parameter(self) -> TunedParameter:
        return LOAD

    def with_value(self, value: float) -> Self:
        return self.model_copy(update={LOAD.field: value})

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the policy, which scales toward the counts of its plan, from the first ones."""
        assert self.traits.plan is not None
        plan = context.followed_plan(replace(self.traits.plan, load_factor=self.load_factor))
        policy = Rule(
            schedule=plan.schedule,
            period_s=context.period_s,
            forecast_tps=plan.expected_tps if self.reads_forecast else None,
            bin_s=plan.bin_s,
            name=self.key,
            **self.fields_for(Rule),
        )
        return replace(context.starting_from(policy, plan.start), plan=plan.plan, work_done=0.5)


class LtU(_UtilizationGated):
    """Move toward the plan when utilization requires it."""

    kinds: ClassVar = {
        "lt-u": Traits(
            "Forecast plan, by utilization",
            "Changes replicas toward the plan only when utilization requires it.",
            Group.PLANNED,
            complexity=23,
            plan=Plan(),
        )
    }

    name: Literal["lt-u"]


class LtUa(_UtilizationGated):
    """As LT-U; late in a period, also leave the plan if traffic differs much from the forecast."""

    kinds: ClassVar = {
        "lt-ua": Traits(
            "Forecast plan, by utilization and load",
            "Changes replicas toward the plan. Leaves it if traffic differs from the forecast.",
            Group.PLANNED,
            complexity=24,
            plan=Plan(),
            may_exceed_plan=True,
        )
    }

    reads_forecast = True

    name: Literal["lt-ua"]
    # Signal in the last part of a period: traffic alone, or utilization too.
    reading: Reading = Rule.reading
    last_share: Share = Rule.last_share  # last part of a period; 20 minutes of an hour
    underestimated: Above = Rule.underestimated  # traffic over forecast that adds replicas
    overestimated: Factor = Rule.overestimated  # traffic over forecast that removes them
    # Seconds of traffic that count.
    observed_s: Annotated[float, Field(gt=0, le=86_400)] = Rule.observed_s
