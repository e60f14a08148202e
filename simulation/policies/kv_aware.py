"""Scaling on the KV cache (methods.md D8, HeteroScale's future work)."""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Service, count_in
from simulation.policies.parts.service_controller import ServiceController, pool_mean
from simulation.policies.parts.stability import (
    IN,
    OUT,
    STAY,
    damp_change,
    direction_of,
    scale_count,
)
from simulation.policy import Actions, Gauge, Observation


@dataclass(eq=False)
class KvAware(ServiceController):
    """Scale on three signs of short KV memory, none of which depends on model or GPU.

    - Memory pressure: KV tokens in use over KV capacity, kept at ``target`` by proportional
      control.
    - Preemptions: more than ``preemptions_per_min`` per instance mean too small a fleet, whatever
      the mean pressure. The instances grow by the factor ``step``.
    - Evictions with a falling hit rate: the prefix cache evicts more than ``evicted_share`` of the
      prefilled tokens, and its hit rate is ``hit_drop`` below the best of the last ``memory_s``
      seconds. The cached prefixes fit better in more instances, so these grow by ``step`` too.

    Nothing is removed while one of the last two is present, or if the rest would exceed the target.
    The rules and their values are ours; the source names the signals only.
    """

    target: float = 0.7
    preemptions_per_min: float = 1.0
    evicted_share: float = 0.5
    hit_drop: float = 0.1
    memory_s: float = 3600.0
    step: float = 1.1
    name: str = "kv-aware"

    def reset(self, fleet: Fleet) -> IntArray:
        counts = super().reset(fleet)
        # By service: the best recent hit rate, and the time in seconds at which it was seen.
        self._best_hit_rate = [(0.0, 0.0)] * len(self.services)
        self._last_decision_s = 0.0
        return counts

    def decide(self, observation: Observation) -> Actions:
        self._since_s = max(observation.time_s - self._last_decision_s, 1e-9)
        self._last_decision_s = observation.time_s
        return super().decide(observation)

    def direction_and_instances(self, i: int, observation: Observation) -> tuple[int, int]:
        """Return the direction of service ``i``, and how many instances its driving role needs."""
        service = self.services[i]
        pools = self.driving_pools(service)
        ready = count_in(observation.ready, pools)
        starting = count_in(observation.starting, pools)
        present = ready + starting
        if not ready:  # no signal yet
            return self.start_first(service, observation, present)
        pressure = pool_mean(observation.utilisation, observation.ready, pools)
        expected = ready * pressure / self.target
        is_short = self._is_memory_short(i, service, observation)
        if is_short and not starting:  # grow by at least one step, and one instance
            expected = max(expected, float(scale_count(present, self.step)))
            return OUT, max(present + 1, damp_change(expected, present, self.stability.damping))
        direction = direction_of(expected, present, self.stability)
        if direction == IN and is_short:
            return STAY, present
        return direction, max(1, damp_change(expected, present, self.stability.damping))

    def gauge(self, observation: Observation) -> Gauge:
        """Return the gauge of KV memory in use, with a value for each service."""
        pressure = [
            pool_mean(observation.utilisation, observation.ready, self.driving_pools(service))
            for service in self.services
        ]
        return Gauge(
            "KV memory in use",
            True,
            np.array(pressure),
            out_above=self.target * (1 + self.stability.theta_out),
            in_below=self.target * (1 - self.stability.theta_in),
        )

    def _is_memory_short(self, i: int, service: Service, observation: Observation) -> bool:
        """Return whether preemptions or a falling hit rate show that KV memory is short."""
        signals = observation.signals
        if signals is None:
            return False
        pools = list(service.pools)
        ready = max(count_in(observation.ready, pools), 1)
        preempted = float(signals.preemptions[pools].sum())
        preemptions_per_min = preempted / ready / self._since_s * 60
        if preemptions_per_min > self.preemptions_per_min:
            return True
        return self._is_cache_too_small(i, service, observation)

    def _is_cache_too_small(self, i: int, service: Service, observation: Observation) -> bool:
        """Return whether the prefix cache evicts a lot while its hit rate has fallen.

        The hit rate is compared with the best of the last ``memory_s``, which this updates.
        """
        signals, now = observation.signals, observation.time_s
        assert signals is not None
        hit_rate = pool_mean(signals.hit_rate, observation.ready, service.prefill)
        if not np.isfinite(hit_rate):
            return False
        best_rate, best_at_s = self._best_hit_rate[i]
        if hit_rate >= best_rate or now - best_at_s > self.memory_s:
            self._best_hit_rate[i] = (hit_rate, now)
            return False
        pools = list(service.prefill)
        evicted_tps, computed_tps = signals.evicted_tps[pools], signals.prefill_tps[pools]
        evicts_much = evicted_tps.sum() > self.evicted_share * computed_tps.sum()
        return bool(evicts_much and hit_rate < best_rate - self.hit_drop)
