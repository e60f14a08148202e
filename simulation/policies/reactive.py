"""Unified reactive scaling on memory utilisation (methods.md E8; SageServe, section 4)."""

from __future__ import annotations

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Endpoints, initial_counts
from simulation.policy import Observation


class UnifiedReactive:
    """One instance more above ``scale_out``, one less below ``scale_in``, per endpoint.

    An endpoint is all pools of one model in one region (and of one role); its effective memory
    utilisation is that of its ready instances together. After an event the endpoint rests for
    ``cooldown_s``. Within an endpoint of several pools the cheapest per output token with room
    grows, and the dearest above its minimum shrinks. On a fleet split by ``silos.siloed`` the same
    rules are the siloed baseline.
    """

    def __init__(
        self,
        scale_out: float = 0.7,
        scale_in: float = 0.3,
        cooldown_s: float = 15.0,
        interval_s: float = 15.0,
        name: str = "reactive",
    ) -> None:
        self._scale_out = scale_out
        self._scale_in = scale_in
        self._cooldown_s = cooldown_s
        self._interval_s = interval_s
        self._name = name
        self._endpoints: Endpoints | None = None
        self._rests_until = np.zeros(0)

    @property
    def name(self) -> str:
        return self._name

    @property
    def interval_s(self) -> float:
        return self._interval_s

    def reset(self, fleet: Fleet) -> IntArray:
        self._endpoints = Endpoints(fleet)
        self._rests_until = np.full(len(self._endpoints), -np.inf)
        return initial_counts(fleet)

    def decide(self, observation: Observation) -> IntArray:
        ends = self._endpoints
        assert ends is not None, "reset comes first"
        targets = observation.ready + observation.starting
        utilisation = ends.utilisation(observation)
        step = (utilisation > self._scale_out) * 1 - (utilisation < self._scale_in) * 1
        step[observation.time_s < self._rests_until] = 0
        for e in np.flatnonzero(step):
            if ends.move(targets, ends.pools[e], int(step[e])):
                self._rests_until[e] = observation.time_s + self._cooldown_s
        return targets
