"""Stop the replay of a policy that costs more than another that meets every SLO."""

import numpy as np

from simulation.arrays import IntArray
from simulation.early_stop import TargetMissed
from simulation.fleet import Fleet
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Hold, Observation, ScalingPolicy, actions_of


class CostLimitExceeded(TargetMissed):
    """The instances of a policy cost more than the limit before the replay ended."""


class CostLimit(Wrapper):
    """Run ``policy`` unchanged, and raise CostLimitExceeded once it cost more than ``usd``.

    GPUs are charged at the lowest price of the day. Instances are counted at each decision. Those
    between two decisions are missed, so the limit is meant for policies that cost clearly more.
    """

    def __init__(self, policy: ScalingPolicy, usd: float) -> None:
        super().__init__(policy)
        self._limit_usd = usd

    def reset(self, fleet: Fleet) -> IntArray:
        per_hour = [pool.lowest_usd * pool.gpus_per_instance for pool in fleet.pools]
        self._usd_per_s = np.array(per_hour) / 3600
        self._paid_usd, self._last_decision_s = 0.0, 0.0
        self._last_targets = super().reset(fleet)
        return self._last_targets

    def decide(self, observation: Observation) -> Actions:
        """Add the cost since the last decision; raise CostLimitExceeded above the limit."""
        counts = observation.present + observation.draining
        passed_s = observation.time_s - self._last_decision_s
        self._last_decision_s = observation.time_s
        # The simulation skips decisions that repeat the last one. Up to the last interval, the
        # fleet had the targets of that decision. In the last interval, it has ``counts``.
        held_s = max(0.0, passed_s - self.interval_s)
        self._paid_usd += held_s * float(self._last_targets @ self._usd_per_s)
        self._paid_usd += (passed_s - held_s) * float(counts @ self._usd_per_s)
        if self._paid_usd > self._limit_usd:
            raise CostLimitExceeded
        actions = actions_of(self._policy.decide(observation))
        self._last_targets = actions.targets
        return actions

    # Defined here too: ``policy.holds`` trusts a class only if it defines ``hold`` and ``decide``.
    def hold(self, time_s: float) -> Hold | None:
        return super().hold(time_s)
