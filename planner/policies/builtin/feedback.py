"""Negative feedback on one latency (methods.md D3; HeteroScale, Algorithm 3)."""

from __future__ import annotations

from typing import ClassVar, Literal

from planner.policies.base import Group, Knob, Traits
from planner.policies.builtin.coordinated import Latencies
from planner.policies.making import Making, Ready
from planner.sections import Milliseconds
from simulation.policies.feedback import TBT, TTFT


class Feedback(Latencies):
    """Algorithm 3 on one latency."""

    kinds: ClassVar = {
        "ttft-feedback": Traits(
            "Feedback on TTFT",
            "Fixed steps by time to first token.",
            Group.COORDINATED,
            complexity=16,
        ),
        "tbt-feedback": Traits(
            "Feedback on TBT",
            "Fixed steps by time between tokens.",
            Group.COORDINATED,
            complexity=17,
        ),
    }

    name: Literal["ttft-feedback", "tbt-feedback"]
    target_ms: Milliseconds | None = None  # left out: the tightest limit of the interactive tiers

    @property
    def free(self) -> Knob | None:
        return super().free if self.target_ms is None else None

    def ready(self, making: Making) -> Ready:
        signal = TTFT if self.name == "ttft-feedback" else TBT
        target_s = None if self.target_ms is None else self.target_ms / 1000
        if target_s is None:  # as the rule finds it
            tiers = [tier for tier in making.fleet(making.today).tiers if not tier.deferrable]
            limits = [tier.ttft_s if signal == TTFT else tier.tbt_s for tier in tiers]
            target_s = min((limit for limit in limits if limit is not None), default=None)
        if target_s is not None:
            target_s *= self.times(1.0)
        return making.from_today(self.layer(making, signal, target_s))
