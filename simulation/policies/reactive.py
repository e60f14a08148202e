"""Unified reactive scaling on memory utilisation (methods.md E8; SageServe, section 4)."""

from __future__ import annotations

import numpy as np

from simulation.fleet import Fleet, Pool
from simulation.performance.profile import iteration_s
from simulation.policies.base import IntArray, Observation

MEAN_CONTEXT = 1_000  # tokens of a decode, at which pools are compared


class UnifiedReactive:
    """One instance more above ``scale_out``, one less below ``scale_in``, per endpoint.

    An endpoint is all pools of one model in one region (and of one role); its effective memory
    utilisation is that of its ready instances together. After an event the endpoint rests for
    ``cooldown_s``. Within an endpoint of several pools the cheapest per output token with room
    grows, and the dearest above its minimum shrinks.
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
        self._pools: tuple[Pool, ...] = ()
        self._endpoints: list[list[int]] = []
        self._rests_until = np.zeros(0)

    @property
    def name(self) -> str:
        return self._name

    @property
    def interval_s(self) -> float:
        return self._interval_s

    def reset(self, fleet: Fleet) -> IntArray:
        self._pools = fleet.pools
        endpoints: dict[tuple[str, str, str], list[int]] = {}
        for p, pool in enumerate(fleet.pools):
            endpoints.setdefault((pool.model, pool.region, pool.role), []).append(p)
        self._endpoints = [
            sorted(pools, key=lambda p: _usd_per_token_rate(fleet.pools[p]))
            for pools in endpoints.values()
        ]
        self._rests_until = np.full(len(self._endpoints), -np.inf)
        return np.array([pool.initial for pool in fleet.pools], np.int64)

    def decide(self, observation: Observation) -> IntArray:
        targets = observation.ready + observation.starting
        for e, pools in enumerate(self._endpoints):
            if observation.time_s < self._rests_until[e]:
                continue
            utilisation = self._utilisation(observation, pools)
            step = (utilisation > self._scale_out) * 1 - (utilisation < self._scale_in) * 1
            # Cheapest first when growing, dearest first when shrinking.
            for p in pools[:: step or 1]:
                wanted = targets[p] + step
                if step and self._pools[p].minimum <= wanted <= self._pools[p].maximum:
                    targets[p] = wanted
                    self._rests_until[e] = observation.time_s + self._cooldown_s
                    break
        return targets

    def _utilisation(self, observation: Observation, pools: list[int]) -> float:
        room = [observation.ready[p] * self._pools[p].profile.kv_capacity_tokens for p in pools]
        if not sum(room):
            return float(observation.utilisation[pools].max())
        return float(np.average(observation.utilisation[pools], weights=room))


def _usd_per_token_rate(pool: Pool) -> float:
    profile = pool.profile
    batch = profile.max_batch
    seconds = float(iteration_s(profile, batch, batch * MEAN_CONTEXT, 0, 0))
    return pool.usd_per_gpu_hour * pool.gpus_per_instance * seconds / batch
