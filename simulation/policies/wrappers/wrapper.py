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
    """Base class of policies that change the answers of another ``policy``.

    It has the name, interval and signals of that policy.
    """

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
        """Return how long the inner policy's decision at ``time_s`` stays the same.

        None: it must be asked each time. A subclass with its own ``decide`` must define its own.
        """
        return None if self._holds is None else self._holds.hold(time_s)
