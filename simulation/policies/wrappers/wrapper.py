"""Base class of the wrappers of a policy."""

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policy import (
    ComputedParameter,
    Gauge,
    Hold,
    Observation,
    ReportsGauge,
    ReportsParameters,
    ScalingPolicy,
    holds,
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
        inner = policy._gauged if isinstance(policy, Wrapper) else policy
        self._gauged: ReportsGauge | None = inner if isinstance(inner, ReportsGauge) else None
        self._holds = holds(policy)

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

    def hold(self, time_s: float) -> Hold | None:
        """Return how long a decision stays the same; for a subclass that does not change it."""
        return None if self._holds is None else self._holds.hold(time_s)
