"""Scale by memory utilisation (methods.md E8): one pool for all tiers, or silos."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from planner.policies.base import Group, Interval, Policy, Style, Traits, TunedParameter, factors
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Delay, Share
from simulation.policies.parts.endpoints import Sees
from simulation.policies.parts.tier_pools import BATCH_SHARE, siloed_fleet
from simulation.policies.reactive import UnifiedReactive as Rule

APART = Rule.scale_in_below / Rule.scale_out_above  # ratio of the thresholds, kept while tuning
OUT = TunedParameter("scale_out_above", factors(0.9, 0.01))


class Thresholds(Policy):
    """When utilisation asks for more or fewer instances."""

    # queues: utilization with waiting requests; memory: KV memory alone, as the source.
    sees: Sees = Rule.sees
    scale_out_above: Share = Rule.scale_out_above  # utilization that adds a replica
    scale_in_below: Share = Rule.scale_in_below  # utilization that removes one
    # Seconds after a scaling event. Default: until the new replicas serve.
    cooldown_s: Delay | None = Rule.cooldown_s
    interval_s: Interval = Rule.interval_s  # seconds between decisions

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        if self.scale_in_below >= self.scale_out_above:
            raise ValueError("scale_in_below must be below scale_out_above")
        return self

    @property
    def tuned_parameter(self) -> TunedParameter:
        return OUT

    def with_value(self, value: float) -> Self:
        """Return a copy with both thresholds changed in proportion."""
        return self.model_copy(update={"scale_out_above": value, "scale_in_below": value * APART})


class Reactive(Thresholds):
    """Scale one pool for all tiers by its utilization."""

    kinds: ClassVar = {
        "reactive": Traits(
            "Unified reactive",
            "Scales out above 70% and in below 30% utilization. All tiers share one pool.",
            Group.REACTIVE,
            complexity=11,
            style=Style("green"),
        )
    }

    name: Literal["reactive"]

    def build(self, context: PolicyContext) -> BuiltPolicy:
        return context.with_current_fleet(Rule(**self.fields_for(Rule), name=self.key))


class Siloed(Thresholds):
    """Separate replicas for interactive and deferrable tiers."""

    kinds: ClassVar = {
        "siloed": Traits(
            "Siloed reactive",
            "As “Unified reactive”, with separate replicas for deferrable tiers.",
            Group.REACTIVE,
            complexity=12,
        )
    }

    name: Literal["siloed"]
    batch_share: Share = BATCH_SHARE  # share of replicas for deferrable tiers

    def build(self, context: PolicyContext) -> BuiltPolicy:
        fleet, source_pools = siloed_fleet(context.fleet(context.today), self.batch_share)
        return context.limited_to_shared_gpus(
            Rule(**self.fields_for(Rule), name=self.key), fleet, source_pools
        )
