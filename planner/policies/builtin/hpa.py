"""Kubernetes' horizontal pod autoscaler."""

from __future__ import annotations

from typing import ClassVar, Literal

from planner.policies.base import Factor, Group, Interval, Knob, Policy, Traits, factors
from planner.policies.making import Making, Ready
from planner.sections import Count, Delay, Share
from simulation.policies.hpa import Hpa as Rule


class Hpa(Policy):
    """The rules of Kubernetes' autoscaler."""

    kinds: ClassVar = {
        "hpa": Traits(
            "Kubernetes autoscaler",
            "Kubernetes' formula, each pool by itself.",
            Group.REACTIVE,
            complexity=13,
        )
    }

    name: Literal["hpa"]
    metric: Literal["memory", "gpu"] = Rule.metric
    target: Share = Rule.target
    tolerance: Factor = Rule.tolerance
    stabilisation_s: Delay = Rule.stabilisation_s
    scale_up_factor: Factor = Rule.scale_up_factor
    scale_up_instances: Count = Rule.scale_up_instances
    interval_s: Interval = Rule.interval_s

    @property
    def knob(self) -> Knob:
        return Knob("target", factors(0.95, 0.02))

    def ready(self, making: Making) -> Ready:
        return making.from_today(Rule(**self.told(Rule), name=self.key))
