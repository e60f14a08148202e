"""Keep the observations of a policy (methods.md D7)."""

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Observation, ScalingPolicy


class ObservationLog(Wrapper):
    """Run ``policy`` unchanged and append each observation to ``seen``.

    With ``signals``, observations include the signals even if the policy does not need them.
    """

    def __init__(self, policy: ScalingPolicy, signals: bool = True) -> None:
        super().__init__(policy)
        self.wants_signals |= signals
        self.seen: list[Observation] = []

    def reset(self, fleet: Fleet) -> IntArray:
        self.seen = []
        return super().reset(fleet)

    def decide(self, observation: Observation) -> IntArray | Actions:
        self.seen.append(observation)
        return self._policy.decide(observation)
