"""Stop the replay of a policy that costs more than another that meets every SLO."""

from __future__ import annotations

import numpy as np

from simulation.arrays import IntArray
from simulation.early_stop import TargetMissed
from simulation.fleet import Fleet
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Observation, ScalingPolicy


class CostLimitExceeded(TargetMissed):
    """The instances of a policy cost more than the limit before the replay ended."""


class CostLimit(Wrapper):
    """Run ``policy`` unchanged, and raise CostLimitExceeded once it cost more than ``usd``.

    Instances are counted at each decision. Those in between two decisions are not seen, so the
    limit is meant for policies that cost clearly more.
    """

    def __init__(self, policy: ScalingPolicy, usd: float) -> None:
        super().__init__(policy)
        self._limit = usd

    def reset(self, fleet: Fleet) -> IntArray:
        per_hour = [pool.usd_per_gpu_hour * pool.gpus_per_instance for pool in fleet.pools]
        self._usd_per_s = np.array(per_hour) / 3600
        self._paid, self._since_s = 0.0, 0.0
        return super().reset(fleet)

    def decide(self, observation: Observation) -> IntArray | Actions:
        counts = observation.ready + observation.starting + observation.draining
        passed_s, self._since_s = observation.time_s - self._since_s, observation.time_s
        self._paid += passed_s * float(counts @ self._usd_per_s)
        if self._paid > self._limit:
            raise CostLimitExceeded
        return self._policy.decide(observation)
