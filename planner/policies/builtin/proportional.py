"""Scale in proportion to one of six signals (methods.md D3; HeteroScale, Algorithm 2)."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from planner.policies.base import Group, Traits, TunedParameter
from planner.policies.builtin.pd_coordination import Steady, Tps
from planner.policies.context import BuiltPolicy, PolicyContext
from simulation.policies.proportional import SIGNALS, SignalName

LINES: dict[SignalName, tuple[str, str]] = {
    "decode-tps": ("decode TPS", "Output tokens a second over what one instance gives."),
    "prefill-tps": ("prefill TPS", "Prompt tokens computed a second over what one takes."),
    "prefill-gpu": ("prefill GPU use", "Share of time prefill instances run."),
    "prefill-sm": ("prefill SM activity", "Share of time their SMs compute."),
    "decode-gpu": ("decode GPU use", "Share of time decode instances run; says little of load."),
    "decode-sm": (
        "decode SM activity",
        "Time their SMs compute: as modelled, decode TPS.",
    ),
}


class Proportional(Steady):
    """Algorithm 2 on one signal."""

    kinds: ClassVar = {
        name: Traits(f"Proportional to {signal}", line, Group.COORDINATED, complexity=15)
        for name, (signal, line) in LINES.items()
    }

    name: SignalName
    # Per instance: tokens/s, or a share of its time. Default: the reading of a pressure test.
    target: Tps | None = None

    @model_validator(mode="after")
    def _share(self) -> Self:
        if self.target is not None and not SIGNALS[self.name].adds_up and self.target > 1:
            raise ValueError("target of a GPU signal is a share of time, at most 1")
        return self

    @property
    def parameter_to_tune(self) -> TunedParameter | None:
        return super().parameter_to_tune if self.target is None else None

    def build(self, context: PolicyContext) -> BuiltPolicy:
        return context.with_current_fleet(self.driver(context, self.name, self.target))
