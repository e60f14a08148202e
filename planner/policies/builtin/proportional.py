"""Scale in proportion to one of six signals (methods.md D3; HeteroScale, Algorithm 2)."""

from typing import ClassVar, Self

from pydantic import model_validator

from planner.policies.base import Group, Traits
from planner.policies.builtin.pd_coordination import Steady, Tps
from planner.policies.context import BuiltPolicy, PolicyContext
from simulation.policies.proportional import SIGNALS, SignalName

LINES: dict[SignalName, tuple[str, str]] = {
    "decode-tps": ("decode TPS", "Output tokens/s, divided by the target of a replica."),
    "prefill-tps": (
        "prefill TPS",
        "Computed prompt tokens/s, divided by the target of a replica.",
    ),
    "prefill-gpu": ("prefill GPU use", "Share of time in which prefill replicas are busy."),
    "prefill-sm": ("prefill SM activity", "Share of time in which their SMs compute."),
    "decode-gpu": (
        "decode GPU use",
        "Share of time in which decode replicas are busy. It hardly changes with load.",
    ),
    "decode-sm": (
        "decode SM activity",
        "Share of time in which SMs compute. Here it follows decode TPS.",
    ),
}


class Proportional(Steady):
    """Scale in proportion to one signal (HeteroScale, Algorithm 2)."""

    kinds: ClassVar = {
        name: Traits(f"Proportional to {signal}", line, Group.COORDINATED, complexity=15)
        for name, (signal, line) in LINES.items()
    }

    name: SignalName
    # Per replica: tokens/s, or a share of its time. Default: the pressure test.
    target: Tps | None = None

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if self.target is not None and not SIGNALS[self.name].adds_up and self.target > 1:
            raise ValueError("target of a GPU signal is a share of time, at most 1")
        return self

    def build(self, context: PolicyContext) -> BuiltPolicy:
        return context.with_current_fleet(
            self.proportional_control(context, self.name, self.target)
        )
