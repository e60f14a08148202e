"""A policy's observations kept, for what is read off them afterwards (methods.md D7)."""

from __future__ import annotations

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policy import Actions, Observation, ScalingPolicy


class Recording:
    """``policy``, unchanged, with everything it was shown in ``seen``; ``signals`` asks for those
    also where the policy does not."""

    def __init__(self, policy: ScalingPolicy, signals: bool = True) -> None:
        self._policy = policy
        self.wants_signals = signals or bool(getattr(policy, "wants_signals", False))
        self.seen: list[Observation] = []

    @property
    def name(self) -> str:
        return self._policy.name

    @property
    def interval_s(self) -> float:
        return self._policy.interval_s

    def reset(self, fleet: Fleet) -> IntArray:
        self.seen = []
        return self._policy.reset(fleet)

    def decide(self, observation: Observation) -> IntArray | Actions:
        self.seen.append(observation)
        return self._policy.decide(observation)
