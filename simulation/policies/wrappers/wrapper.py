"""Base class of the wrappers of a policy."""

from __future__ import annotations

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policy import (
    ComputedParameter,
    Gauge,
    Observation,
    ReportsGauge,
    ReportsParameters,
    ScalingPolicy,
)


class Wrapper(ScalingPolicy):
    """Run ``policy`` under its own name and interval; subclasses change its answers."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self.name = policy.name
        self.interval_s = policy.interval_s
        # A custom policy may not define it.
        self.wants_signals = bool(getattr(policy, "wants_signals", False))
        # Tested once, since isinstance() with a protocol is slower than a decision.
        self._gauged = policy if isinstance(policy, ReportsGauge) else None

    def reset(self, fleet: Fleet) -> IntArray:
        return self._policy.reset(fleet)

    def gauge(self, observation: Observation) -> Gauge | None:
        return None if self._gauged is None else self._gauged.gauge(observation)

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        return (
            self._policy.computed_parameters()
            if isinstance(self._policy, ReportsParameters)
            else ()
        )
