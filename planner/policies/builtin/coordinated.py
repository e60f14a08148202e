"""What HeteroScale's controllers share: stability and the P/D ratio (methods.md D3, D4)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from planner.policies.base import Above, Factor, Interval, Knob, Policy, Step, factors
from planner.policies.making import Making
from planner.sections import Delay, Share
from simulation.policies.feedback import Feedback, Latency
from simulation.policies.parts.coordinated import Coordinated
from simulation.policies.parts.ratio import FIXED, OBSERVED, Ratio
from simulation.policies.parts.stability import Stability
from simulation.policies.proportional import Proportional, SignalName

Tps = Annotated[float, Field(gt=0, le=1e9)]  # tokens/s of one instance
RatioGiven = Annotated[float, Field(gt=0, le=100)]
STEADY = Stability()


class Steady(Policy):
    """Stability and the P/D ratio of HeteroScale's controllers."""

    theta_out: Factor = STEADY.theta_out
    theta_in: Annotated[float, Field(ge=0, lt=1)] = STEADY.theta_in
    cool_out_s: Delay = STEADY.cool_out_s
    cool_in_s: Delay = STEADY.cool_in_s
    damping: Share = STEADY.damping
    soft_s: Delay = STEADY.soft_s
    # Prefill per decode instance: as today's fleet has them, a number, or re-estimated all along.
    ratio: Literal["fixed", "observed"] | RatioGiven = "fixed"
    half_life_s: Annotated[float, Field(gt=0, le=31 * 86_400)] = Ratio.half_life_s
    interval_s: Interval = Coordinated.interval_s
    target_factor: Above = 1.0  # times the target, given or found

    @property
    def knob(self) -> Knob:
        return Knob("target_factor", factors(1.6, 0.2))

    def steady(self, making: Making) -> dict[str, Any]:
        """What every class of theirs is told."""
        return {
            "stability": Stability(**self.told(Stability)),
            "ratio": self._ratio(making),
            "interval_s": self.interval_s,
            "name": self.key,
        }

    def driver(self, making: Making, signal: SignalName, target: float | None) -> Proportional:
        """Algorithm 2, with what a pressure test shows where no target is given."""
        shown = making.pressure(self.ratio).of(signal) if target is None else target
        return Proportional(signal, shown * self.target_factor, **self.steady(making))

    def _ratio(self, making: Making) -> Ratio:
        if isinstance(self.ratio, float):
            return Ratio(FIXED, self.ratio)
        if self.ratio == FIXED:
            return Ratio()
        tested = making.pressure(OBSERVED)
        return Ratio(
            OBSERVED,
            prefill_tps=tested.of("prefill-tps"),
            decode_tps=tested.of("decode-tps"),
            half_life_s=self.half_life_s,
        )


class Latencies(Steady):
    """The thresholds and steps of Algorithm 3."""

    alpha_out: Above = Feedback.alpha_out
    beta_out: Above = Feedback.beta_out
    gamma_in: Factor = Feedback.gamma_in
    urgent: Step = Feedback.urgent
    moderate: Step = Feedback.moderate
    shrink: Share = Feedback.shrink

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.gamma_in < self.beta_out <= self.alpha_out:
            raise ValueError("thresholds must be gamma_in < beta_out <= alpha_out")
        return self

    def layer(self, making: Making, signal: Latency, target_s: float | None = None) -> Feedback:
        own = {"signal": signal, "target_s": target_s}
        return Feedback(**self.told(Feedback) | self.steady(making) | own)
