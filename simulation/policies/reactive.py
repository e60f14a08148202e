"""Unified reactive scaling on utilization (methods.md E8; SageServe, section 4)."""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import QUEUES, Endpoints, Sees, initial_counts
from simulation.policy import Gauge, Hold, Observation, ScalingPolicy

BETWEEN_S = 15.0  # between two changes, at least (SageServe, section 4)


@dataclass(eq=False)
class UnifiedReactive(ScalingPolicy):
    """Add an instance above ``scale_out_above``, remove one below ``scale_in_below``.

    An endpoint is all pools of one model, region and role. The thresholds are on the utilization of
    its ready instances together (``Endpoints.reading``; in the source that of memory).

    After a change, the endpoint waits for ``cooldown_s``. By default it waits until its new
    instances serve, at least 15 s. The authors' code does the same (kjain1810/SageServe,
    ``BasicArbiter.scale``: the time of a spot reclaim or of a spin-up). The text (section 4) says
    15 s. With a start of ten minutes, that would add forty instances before the first one serves.

    Of several pools, the cheapest per output token grows first and the most expensive shrinks
    first. On a fleet split by ``tier_pools.siloed_fleet`` the same rules are the siloed baseline.
    """

    scale_out_above: float = 0.7
    scale_in_below: float = 0.3
    cooldown_s: float | None = None
    sees: Sees = QUEUES
    interval_s: float = 15.0
    name: str = "reactive"

    def reset(self, fleet: Fleet) -> IntArray:
        self._endpoints = Endpoints(fleet)
        endpoints = len(self._endpoints)
        self._cooldown_until_s = np.full(endpoints, -np.inf)
        in_below = np.full(endpoints, self.scale_in_below)
        out_above = np.full(endpoints, self.scale_out_above)
        self._limits = self._endpoints.limits(self.sees, in_below, out_above)
        self._held: IntArray | None = None  # targets of a decision without a change
        return initial_counts(fleet)

    def decide(self, observation: Observation) -> IntArray:
        """Change endpoints beyond a threshold by one instance.

        An endpoint in its cooldown does not change. Without a stated cooldown, it waits
        ``BETWEEN_S`` after a change, and as long as one of its instances starts.
        """
        ends = self._endpoints
        targets = observation.present
        utilisation = ends.reading(observation, self.sees)
        above, below = utilisation > self.scale_out_above, utilisation < self.scale_in_below
        change = np.subtract(above, below, dtype=np.int64)  # 1, 0 or -1 by endpoint
        # Only a decision without a change, not even one that a cooldown prevents, may be held.
        self._held = None if change.any() or observation.draining.any() else targets
        change[self._cooldown_until_s > observation.time_s] = 0
        if self.cooldown_s is None:
            change[ends.total(observation.starting) > 0] = 0
        if change.any():
            cooldown_s = BETWEEN_S if self.cooldown_s is None else self.cooldown_s
            moved = ends.move_all(targets, change)  # changes ``targets``
            self._cooldown_until_s[moved] = observation.time_s + cooldown_s
        return targets

    def hold(self, time_s: float) -> Hold | None:
        """Keep the targets while no endpoint is beyond a threshold."""
        if self._held is None or self._limits is None:
            return None
        return Hold(np.inf, self._held, limits=self._limits)

    def gauge(self, observation: Observation) -> Gauge:
        return self._endpoints.gauge(
            observation, self.sees, self.scale_out_above, self.scale_in_below
        )
