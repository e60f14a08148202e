"""Scale proportionally, with latency as the safety layer (methods.md D3; HeteroScale 3.3.2)."""

from typing import ClassVar, Literal

import numpy as np

from planner.policies.base import Group, Traits
from planner.policies.builtin.pd_coordination import Latencies, Tps
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Delay
from simulation.policies.feedback import TBT, TTFT
from simulation.policies.proportional import SignalName
from simulation.policies.wrappers.safety_layer import SafetyLayer


class HeteroScale(Latencies):
    """Scale in proportion to a signal; latencies near their limits add replicas (HeteroScale)."""

    kinds: ClassVar = {
        "heteroscale": Traits(
            "Decode TPS, with latency as a safeguard (HeteroScale)",
            "Follows decode TPS. Latency can only add replicas.",
            Group.COORDINATED,
            complexity=18,
        )
    }

    name: Literal["heteroscale"]
    signal: SignalName = "decode-tps"  # driving signal
    target: Tps | None = None  # as for proportional policies
    soft_s: Delay = 120.0  # seconds of soft scale-in (assumed)

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the policy: replicas in proportion to ``signal``, and a safety layer per limit.

        A layer adds replicas if the latency that it watches comes near its limit.
        """
        limits = {latency: context.tightest_s(latency) for latency in (TTFT, TBT)}
        layers = tuple(
            self.latency_feedback(context, latency, limit)
            for latency, limit in limits.items()
            if not np.isnan(limit).any()
        )
        driver = self.proportional_control(context, self.signal, self.target)
        return context.with_current_fleet(SafetyLayer(driver, layers, name=self.key))
