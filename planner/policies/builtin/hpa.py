"""Model Kubernetes' autoscalers: HPA on a gauge of the pods, and KEDA."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from planner.policies.base import (
    Above,
    Factor,
    Group,
    Interval,
    Policy,
    Traits,
    TunedParameter,
    factors,
)
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Count, Delay
from simulation.arrays import FloatArray
from simulation.policies.hpa import Hpa as Rule
from simulation.policies.hpa import Keda as KedaRule
from simulation.policies.parts.pool_metrics import SHARES, Metric

# Published defaults. Metrics without one get their target from a pressure test.
TARGETS: dict[Metric, float] = {
    "memory": 0.8,  # of a metric in per cent: Kubernetes' default
    "gpu": 0.8,
    "queue": 5.0,  # vLLM's production stack
}
# Tuned factors on the target. Targets that are shares must stay below 1. A queue's target spans a
# wider range.
TURNS: dict[Metric, tuple[float, ...]] = {
    "memory": factors(1.19, 0.025),
    "gpu": factors(1.19, 0.2),
    "queue": factors(8.0, 0.01),
    "concurrency": factors(2.0, 0.1),
    "tokens": factors(2.0, 0.1),
}
# Policy names that fix the metric.
METRICS: dict[str, Metric] = {
    "hpa-queue": "queue",
    "hpa-concurrency": "concurrency",
    "hpa-tokens": "tokens",
    "keda-concurrency": "concurrency",
}
Target = Annotated[float, Field(gt=0, le=1e9)]


class MetricPolicy(Policy):
    """An autoscaler with a target for a metric of the pods."""

    default_targets: ClassVar[dict[Metric, float]] = TARGETS
    metric: Metric  # memory, gpu, queue, concurrency or tokens
    # Per replica: a share of memory or time, requests, or tokens. Default: a published value, or
    # the pressure test.
    target: Target | None = None
    target_factor: Above = 1.0  # factor on the target

    @property
    def tuned_parameter(self) -> TunedParameter:
        return TunedParameter("target_factor", TURNS[self.metric])

    def scaled_target(self, context: PolicyContext) -> float | FloatArray:
        """Return the target, given or default, times ``target_factor``."""
        target: float | FloatArray | None = self.target or self.default_targets.get(self.metric)
        if target is None:
            target = context.pressure("fixed").metric_targets(self.metric)
        return target * self.target_factor


class _Autoscaler(MetricPolicy):
    """The rules of Kubernetes' autoscaler."""

    tolerance: Factor = Rule.tolerance  # deviation without action
    stabilisation_s: Delay = Rule.stabilisation_s  # window for scale-in
    scale_up_factor: Factor = Rule.scale_up_factor  # largest growth per 15 s
    scale_up_instances: Count = Rule.scale_up_instances  # or this many replicas per 15 s
    min_replicas: Count = Rule.min_replicas  # smallest count; KEDA scales to 0
    interval_s: Interval = Rule.interval_s  # seconds between decisions

    @model_validator(mode="before")
    @classmethod
    def _set_metric(cls, section: Any) -> Any:
        """Set the metric that the policy's name fixes; raise ValueError if another is given."""
        metric = METRICS.get(section.get("name", "")) if isinstance(section, dict) else None
        if metric is None:
            return section
        if section.get("metric", metric) != metric:
            raise ValueError(f"metric of {section['name']} is {metric}. Leave it out")
        return {**section, "metric": metric}

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.target is not None and self.metric in SHARES and self.target > 1:
            raise ValueError(f"target must be at most 1, since {self.metric} is a share")
        return self


class Hpa(_Autoscaler):
    """Scale as the horizontal pod autoscaler does, on a mean over pods."""

    kinds: ClassVar = {
        "hpa": Traits(
            "Kubernetes autoscaler",
            "HPA formula on KV memory, per pool.",
            Group.REACTIVE,
            complexity=13,
        ),
        "hpa-queue": Traits(
            "Kubernetes autoscaler on queue depth",
            "HPA formula on waiting requests per replica.",
            Group.REACTIVE,
            complexity=13,
        ),
        "hpa-concurrency": Traits(
            "Kubernetes autoscaler on concurrency",
            "HPA formula on waiting and running requests per replica.",
            Group.REACTIVE,
            complexity=13,
        ),
        "hpa-tokens": Traits(
            "Kubernetes autoscaler on tokens in flight",
            "HPA formula on KV tokens of waiting and running requests.",
            Group.REACTIVE,
            complexity=13,
        ),
    }

    name: Literal["hpa", "hpa-queue", "hpa-concurrency", "hpa-tokens"]
    metric: Metric = Rule.metric  # default of the name hpa; the others name theirs

    def build(self, context: PolicyContext) -> BuiltPolicy:
        parameters = self.fields_for(Rule) | {"target": self.scaled_target(context)}
        return context.with_current_fleet(Rule(**parameters | {"name": self.key}))


class Keda(_Autoscaler):
    """Scale as KEDA does, on the total over pods, also from and to zero."""

    kinds: ClassVar = {
        "keda": Traits(
            "KEDA on queue depth",
            "KEDA formula on all waiting requests of a pool.",
            Group.REACTIVE,
            complexity=14,
        ),
        "keda-concurrency": Traits(
            "KEDA on concurrency",
            "KEDA formula on waiting and running requests.",
            Group.REACTIVE,
            complexity=14,
        ),
    }

    name: Literal["keda", "keda-concurrency"]
    metric: Metric = KedaRule.metric  # default of the name keda; the other names its own
    polling_s: Interval = KedaRule.polling_s  # seconds between checks at zero replicas
    cooldown_s: Delay = KedaRule.cooldown_s  # seconds without load before zero

    def build(self, context: PolicyContext) -> BuiltPolicy:
        parameters = self.fields_for(KedaRule) | {"target": self.scaled_target(context)}
        return context.with_current_fleet(KedaRule(**parameters | {"name": self.key}))
