"""Share the stability rules and the P/D ratio of HeteroScale's controllers (methods.md D3, D4)."""

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from planner.policies.base import Above, Factor, Interval, Policy, Step, TunedParameter, factors
from planner.policies.context import PolicyContext
from planner.schema_types import Delay, Share
from simulation.arrays import FloatArray
from simulation.policies.feedback import Feedback, Latency
from simulation.policies.parts.ratio import BEST_RATIO, FIXED, OBSERVED, PdRatio
from simulation.policies.parts.service_controller import ServiceController
from simulation.policies.parts.stability import Stability
from simulation.policies.proportional import Proportional, SignalName

Tps = Annotated[float, Field(gt=0, le=1e9)]  # tokens/s of one instance
RatioGiven = Annotated[float, Field(gt=0, le=100)]
STEADY = Stability()
# Target as a share of the pressure test's reading, if backtests tuned nothing. Assumed: the source
# takes targets from the test, but gives no distance from the reading.
HEADROOM = 0.9


class Steady(Policy):
    """Parameters that all controllers of HeteroScale share: stability, P/D ratio and target."""

    theta_out: Factor = STEADY.theta_out  # deviation that scales out (ours)
    # Deviation that scales in (ours).
    theta_in: Annotated[float, Field(ge=0, lt=1)] = STEADY.theta_in
    cool_out_s: Delay = STEADY.cool_out_s  # cooling after a scale-out (ours)
    cool_in_s: Delay = STEADY.cool_in_s  # cooling after a scale-in (ours)
    damping: Share = STEADY.damping  # share of a step that is taken (ours)
    soft_s: Delay = STEADY.soft_s  # seconds of soft scale-in (ours)
    # Prefill per decode replica: best, fixed (as today), observed (best, then by tokens), or a
    # number.
    ratio: Literal["best", "fixed", "observed"] | RatioGiven = "best"
    # Half-life of the observed ratio (ours).
    half_life_s: Annotated[float, Field(gt=0, le=31 * 86_400)] = PdRatio.half_life_s
    interval_s: Interval = ServiceController.interval_s  # seconds between decisions (ours)
    # Factor on the target; default: 1 for a given target, 0.9 for a measured one.
    target_factor: Above | None = None

    @property
    def tuned_parameter(self) -> TunedParameter:
        return TunedParameter("target_factor", factors(1.6, 0.2))

    def common_arguments(self, context: PolicyContext) -> dict[str, Any]:
        """Return the arguments that all HeteroScale controllers share."""
        return {
            "stability": Stability(**self.fields_for(Stability)),
            "ratio": self._ratio(context),
            "interval_s": self.interval_s,
            "name": self.key,
        }

    def proportional_control(
        self, context: PolicyContext, signal: SignalName, target: float | None
    ) -> Proportional:
        """Return the proportional control (Algorithm 2) on ``signal``.

        Without ``target``, the target is the reading of a pressure test: a simulation of pools at
        their rated capacity.
        """
        if target is not None:
            return Proportional(
                signal, target * self.factor_or(1.0), **self.common_arguments(context)
            )
        tested, factor = context.pressure(self.ratio), self.factor_or(HEADROOM)
        return Proportional(
            signal,
            tested.signal_targets(signal) * factor,
            tested.metric_targets("concurrency") * factor,
            **self.common_arguments(context),
        )

    def factor_or(self, default: float) -> float:
        """Return the factor on targets that the scenario sets, else ``default``."""
        return default if self.target_factor is None else self.target_factor

    def _ratio(self, context: PolicyContext) -> PdRatio:
        """Return the P:D ratio to keep, as ``ratio`` says.

        It is that of today's fleet for "fixed", and without prefill and decode pools.
        """
        if isinstance(self.ratio, float):
            return PdRatio(FIXED, self.ratio)
        disaggregated = any(pool.role == "prefill" for pool in context.fleet(context.today).pools)
        if self.ratio == FIXED or not disaggregated:
            return PdRatio()
        tested = context.pressure(BEST_RATIO)
        if self.ratio == BEST_RATIO:
            return PdRatio(FIXED, tested.ratio)
        return PdRatio(
            OBSERVED,
            tested.ratio,
            prefill_tps=tested.signal_targets("prefill-tps"),
            decode_tps=tested.signal_targets("decode-tps"),
            half_life_s=self.half_life_s,
        )


class Latencies(Steady):
    """Parameters of the latency feedback (Algorithm 3): its thresholds and steps."""

    alpha_out: Above = Feedback.alpha_out  # latency over its limit that scales out urgently (ours)
    beta_out: Above = Feedback.beta_out  # latency over its limit that scales out (ours)
    gamma_in: Factor = Feedback.gamma_in  # latency over its limit that scales in (ours)
    urgent: Step = Feedback.urgent  # factor of an urgent step
    moderate: Step = Feedback.moderate  # factor of a step
    shrink: Share = Feedback.shrink  # factor of a scale-in

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        if not self.gamma_in < self.beta_out <= self.alpha_out:
            raise ValueError("thresholds must be gamma_in < beta_out <= alpha_out")
        return self

    def latency_feedback(
        self, context: PolicyContext, signal: Latency, target_s: FloatArray
    ) -> Feedback:
        """Return the feedback (Algorithm 3) on the latency ``signal`` with limits ``target_s``.

        These are ``[pools]`` in seconds. If no tier has a limit (NaN), the feedback gets None,
        which it rejects.
        """
        limit = {"signal": signal, "target_s": None if np.isnan(target_s).any() else target_s}
        return Feedback(**self.fields_for(Feedback) | self.common_arguments(context) | limit)
