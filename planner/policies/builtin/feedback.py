"""Apply negative feedback on one latency (methods.md D3; HeteroScale, Algorithm 3)."""

from typing import ClassVar, Literal

from planner.policies.base import Group, Traits
from planner.policies.builtin.pd_coordination import Latencies
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Milliseconds
from simulation.policies.feedback import TBT, TTFT


class Feedback(Latencies):
    """Scale in fixed steps by one latency (HeteroScale, Algorithm 3)."""

    kinds: ClassVar = {
        "ttft-feedback": Traits(
            "Feedback on TTFT",
            "Adds or removes replicas in fixed steps, by TTFT.",
            Group.COORDINATED,
            complexity=16,
        ),
        "tbt-feedback": Traits(
            "Feedback on TPOT",
            "Adds or removes replicas in fixed steps, by TPOT.",
            Group.COORDINATED,
            complexity=17,
        ),
    }

    name: Literal["ttft-feedback", "tbt-feedback"]
    # Target latency. Default: the tightest limit of the model's interactive tiers.
    target_ms: Milliseconds | None = None

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the policy on the current fleet; ``target_ms`` defaults to the tightest limit."""
        signal = TTFT if self.name == "ttft-feedback" else TBT
        target_s = context.tightest_s(signal)
        if self.target_ms is not None:
            target_s[:] = self.target_ms / 1000
        return context.with_current_fleet(
            self.latency_feedback(context, signal, target_s * self.factor_or(1.0))
        )
