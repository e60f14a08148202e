"""Scale on KV-cache memory, preemptions and evictions (methods.md D8)."""

from typing import ClassVar, Literal

from planner.policies.base import Factor, Group, Step, Traits, TunedParameter, factors
from planner.policies.builtin.pd_coordination import Steady
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Delay, Share
from simulation.policies.kv_aware import KvAware as Rule


class KvAware(Steady):
    """Scale on KV memory, preemptions and lost prefix blocks."""

    kinds: ClassVar = {
        "kv-aware": Traits(
            "KV-cache-aware",
            "Scales on KV memory, preemptions and cache evictions.",
            Group.REACTIVE,
            complexity=14,
        )
    }

    name: Literal["kv-aware"]
    target: Share = Rule.target  # memory utilization
    preemptions_per_min: Factor = Rule.preemptions_per_min  # preemptions that add replicas
    evicted_share: Factor = Rule.evicted_share  # evicted share of the cache that adds replicas
    hit_drop: Share = Rule.hit_drop  # drop of the hit rate that adds replicas
    memory_s: Delay = Rule.memory_s  # time over which the hit rate is known
    step: Step = Rule.step  # factor of a step

    @property
    def tuned_parameter(self) -> TunedParameter:
        return TunedParameter("target", factors(0.95, 0.02))

    def build(self, context: PolicyContext) -> BuiltPolicy:
        aim = {"target": self.target * self.factor_or(1.0)}
        return context.with_current_fleet(
            Rule(**self.fields_for(Rule) | self.common_arguments(context) | aim)
        )
