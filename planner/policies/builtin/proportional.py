"""Scale in proportion to one of six signals (methods.md D3; HeteroScale, Algorithm 2)."""

from typing import ClassVar, Self

from pydantic import model_validator

from planner.policies.base import Group, Traits
from planner.policies.builtin.pd_coordination import Steady, Tps
from planner.policies.context import BuiltPolicy, PolicyContext
from simulation.policies.proportional import SIGNALS, SignalName

LINES: dict[SignalName, tuple[str, str]] = {
    "decode-tps": ("decode TPS", "Replicas = output tokens/s ÷ target per replica."),
    "prefill-tps": ("prefill TPS", "Replicas = computed prompt tokens/s ÷ target per replica."),
    "prefill-gpu": ("prefill GPU use", "Scales on prefill busy time."),
    "prefill-sm": ("prefill SM activity", "Scales on prefill SM compute time."),
    "decode-gpu": (
        "decode GPU use",
        "Scales on decode busy time. Weak signal: hardly changes with load.",
    ),
    "decode-sm": (
        "decode SM activity",
        "Scales on decode SM compute time. Here it follows decode TPS.",
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
