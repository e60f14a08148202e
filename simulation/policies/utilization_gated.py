"""Reach a plan when utilization requires it: LT-U and LT-UA (methods.md E8; SageServe, 6.4)."""

from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import QUEUES, Endpoints, Sees
from simulation.policies.parts.schedule import Schedule, ScheduleStep
from simulation.policy import Actions, Gauge, Hold, Observation, ScalingPolicy

ROUNDING_S = 1e-6
Reading = Literal["traffic", "memory"]
TRAFFIC: Reading = "traffic"


@dataclass(eq=False)
class UtilizationGated(ScalingPolicy):
    """Move toward the plan one instance at a time when utilization passes a threshold (LT-U).

    An endpoint (the pools of one model, region and role) with fewer instances than planned grows
    while its utilization (``Endpoints.reading``) is above ``scale_out_above``. One with more
    shrinks while its utilization is below ``scale_in_below``. After a change it waits
    ``cooldown_s``.

    With ``forecast_tps`` (LT-UA), the plan is no limit in the last ``last_share`` of each period
    (20 minutes of an hour). An endpoint then grows if the load is at least ``underestimated`` times
    the forecast, and shrinks if it is at most ``overestimated`` times. Section 6.4 says that it
    switches "from a memory-based strategy to a traffic-based strategy". The authors' code only
    tests the ratio there (kjain1810/SageServe, ``GlobalArbiterARIMAChecking.scale``): that is
    ``reading`` traffic. With memory, utilization must pass its threshold too, another reading of
    the section's "as for LT-U". Beyond the plan, an endpoint grows again only once its new
    instances serve, as in their code. At night, the load of one instance is five times a forecast
    near 0.

    ``period_s`` is the length of a period, the first of which begins at 0. ``forecast_tps [bins,
    pools]``, in bins of ``bin_s`` (default: a period), is the expected interactive input tokens/s
    of the pool's model and region. It is compared with those of the last ``observed_s`` (a minute,
    as the authors do).
    """

    schedule: Schedule
    period_s: float = 3600.0
    forecast_tps: FloatArray | None = None
    bin_s: float | None = None
    reading: Reading = TRAFFIC
    sees: Sees = QUEUES
    scale_out_above: float = 0.7
    scale_in_below: float = 0.3
    cooldown_s: float = 15.0
    last_share: float = 1 / 3
    underestimated: float = 5.0
    overestimated: float = 0.5
    observed_s: float = 60.0
    interval_s: float = 15.0
    name: str = "lt-u"

    def reset(self, fleet: Fleet) -> IntArray:
        self._endpoints = Endpoints(fleet)
        self._cooldown_until_s = np.full(len(self._endpoints), -np.inf)
        self._arrived: deque[tuple[float, FloatArray]] = deque()
        self._last_decision_s = 0.0
        self._held: Hold | None = None
        return self.schedule.reset(fleet)

    def decide(self, observation: Observation) -> Actions:
        """Change endpoints by one instance where utilization or unexpected traffic requires it."""
        ends = self._endpoints
        targets = observation.present
        self.schedule.observe(observation)
        planned = self.schedule.step_at(observation.time_s)
        missing = planned.counts - targets  # instances of each pool to its plan; below 0: too many
        change = self._wanted_change(observation, gap=ends.total(missing))
        change[self._cooldown_until_s > observation.time_s] = 0
        for e in np.flatnonzero(change):
            # Move a pool toward the plan. Any pool will do once the plan is reached.
            towards_plan = [p for p in ends.pools[e] if missing[p] * change[e] > 0]
            if ends.move(targets, towards_plan or ends.pools[e], int(change[e])):
                self._cooldown_until_s[e] = observation.time_s + self.cooldown_s
        self._held = self._decision_to_hold(observation, planned, targets)
        return Actions(targets, shares=planned.shares, release_tokens=planned.release)

    def _wanted_change(self, observation: Observation, gap: FloatArray) -> IntArray:
        """Return 1, -1 or 0 for each endpoint: it should grow, shrink or stay.

        ``gap [endpoints]`` are the missing instances to the plan; below 0: too many.
        """
        ends = self._endpoints
        utilisation = ends.reading(observation, self.sees)
        high, low = utilisation > self.scale_out_above, utilisation < self.scale_in_below
        under, over = self._far_from_forecast(observation)  # forecast far too low, far too high
        if self.reading == TRAFFIC:  # the ratio of load to forecast alone decides
            grows = under | (high & (gap > 0) & ~over)
            shrinks = over | (low & (gap < 0) & ~under)
        else:  # the ratio only lifts the limit of the plan
            grows = high & ((gap > 0) | under)
            shrinks = low & ((gap < 0) | over)
        # Beyond the plan, wait for starting instances. Only a plan removes the last instance.
        grows &= (gap > 0) | (ends.total(observation.starting) == 0)
        shrinks &= (gap < 0) | (ends.total(observation.present) > 1)
        return np.select([grows, shrinks], [1, -1], 0)

    def hold(self, time_s: float) -> Hold | None:
        """Keep the targets while no endpoint is beyond the threshold towards its plan."""
        return self._held

    def _decision_to_hold(
        self, observation: Observation, planned: ScheduleStep, targets: IntArray
    ) -> Hold | None:
        """Return ``targets`` with the limits at which an endpoint moves towards its plan.

        None if the policy must be called at each decision: it compares traffic with a forecast, or
        instances drain or are lent.
        """
        if self.forecast_tps is not None or planned.lent is not None or observation.draining.any():
            return None
        gap = self._endpoints.total(planned.counts - targets)
        limits = self._endpoints.limits(
            self.sees,
            np.where(gap < 0, self.scale_in_below, -np.inf),
            np.where(gap > 0, self.scale_out_above, np.inf),
        )
        if limits is None:
            return None
        return Hold(self.schedule.next_change_s(observation.time_s), targets, limits=limits)

    def gauge(self, observation: Observation) -> Gauge:
        return self._endpoints.gauge(
            observation, self.sees, self.scale_out_above, self.scale_in_below
        )

    def _far_from_forecast(self, observation: Observation) -> tuple[BoolArray, BoolArray]:
        """Return two masks of endpoints: load far above the forecast, and load far below it.

        All are False without a forecast, and before the last part of a period.
        """
        now, asked_tps = observation.time_s, observation.asked_tps
        none = np.zeros(len(self._endpoints), np.bool_)
        if self.forecast_tps is None or not len(self.forecast_tps) or asked_tps is None:
            return none, none
        # Append the tokens that arrived since the last decision, and drop old ones.
        self._arrived.append((now, asked_tps * (now - self._last_decision_s)))
        self._last_decision_s = now
        while self._arrived[0][0] <= now - self.observed_s:
            self._arrived.popleft()
        last_part_begins_s = (1 - self.last_share) * self.period_s
        if now % self.period_s < last_part_begins_s - ROUNDING_S:
            return none, none
        observed_s = max(min(self.observed_s, now), 1e-9)
        observed_tps = np.sum([tokens for _, tokens in self._arrived], axis=0) / observed_s
        # Compare with the forecast of the bin in which most of the observed time lies.
        bin_now = int((now - observed_s / 2) // (self.bin_s or self.period_s))
        forecast_tps = self.forecast_tps[min(bin_now, len(self.forecast_tps) - 1)]
        # All pools of an endpoint are of one model in one region.
        first = [pools[0] for pools in self._endpoints.pools]
        observed, forecast = observed_tps[first], forecast_tps[first]
        under = (observed >= self.underestimated * forecast) & (observed > 0)
        return under, observed <= self.overestimated * forecast
