"""Add soft scale-in and lending to a policy (methods.md D4, E9)."""

from dataclasses import replace

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Hold, Observation, ScalingPolicy, actions_of


class ScaleInOptions(Wrapper):
    """Make the scale-in of ``policy`` soft for ``soft_s`` seconds, and lend removed instances.

    With ``lend``, removed instances go to the spot pool, unless they are spot instances. Options
    that the policy itself sets have priority.
    """

    def __init__(self, policy: ScalingPolicy, *, soft_s: float = 0.0, lend: bool = False) -> None:
        super().__init__(policy)
        self._soft_s = soft_s
        self._lend = lend
        self._spot = np.zeros(0, np.bool_)

    def reset(self, fleet: Fleet) -> IntArray:
        self._spot = np.array([pool.spot for pool in fleet.pools], np.bool_)
        return super().reset(fleet)

    def decide(self, observation: Observation) -> Actions:
        """Return the policy's actions with this soft scale-in and lending, unless it sets them."""
        actions = actions_of(self._policy.decide(observation))
        lend = actions.lend
        if lend is None and self._lend:
            lend = ~self._spot if len(self._spot) else np.ones(len(actions.targets), np.bool_)
        if lend is actions.lend and not self._soft_s:
            return actions
        return replace(actions, soft_s=actions.soft_s or self._soft_s, lend=lend)

    # Defined here too: ``policy.holds`` trusts a class only if it defines ``hold`` and ``decide``.
    def hold(self, time_s: float) -> Hold | None:
        return super().hold(time_s)
