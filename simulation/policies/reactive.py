"""Unified reactive scaling on memory utilisation (methods.md E8; SageServe, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Endpoints, initial_counts
from simulation.policy import Observation, ScalingPolicy


@dataclass(eq=False)
class UnifiedReactive(ScalingPolicy):
    """One instance more above ``scale_out_above``, one less below ``scale_in_below``, per endpoint.

    An endpoint is all pools of one model in one region (and of one role); its effective memory
    utilisation is that of its ready instances together. After an event the endpoint rests for
    ``cooldown_s``. Within an endpoint of several pools the cheapest per output token with room
    grows, and the dearest above its minimum shrinks. On a fleet split by ``silos.siloed`` the same
    rules are the siloed baseline.
    """

    scale_out_above: float = 0.7
    scale_in_below: float = 0.3
    cooldown_s: float = 15.0
    interval_s: float = 15.0
    name: str = "reactive"

    def reset(self, fleet: Fleet) -> IntArray:
        self._ends = Endpoints(fleet)
        self._rests_until = np.full(len(self._ends), -np.inf)
        return initial_counts(fleet)

    def decide(self, observation: Observation) -> IntArray:
        ends = self._ends
        targets = observation.ready + observation.starting
        utilisation = ends.utilisation(observation)
        step = (utilisation > self.scale_out_above) * 1 - (utilisation < self.scale_in_below) * 1
        step[observation.time_s < self._rests_until] = 0
        for e in np.flatnonzero(step):
            if ends.move(targets, ends.pools[e], int(step[e])):
                self._rests_until[e] = observation.time_s + self.cooldown_s
        return targets
