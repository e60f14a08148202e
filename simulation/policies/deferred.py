"""A plan reached when utilisation asks for it: LT-U and LT-UA (methods.md E8; SageServe, 6.4)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Endpoints
from simulation.policies.parts.steps import Counts, Steps, Times
from simulation.policy import Gauge, Observation, ScalingPolicy

ROUNDING_S = 1e-6


@dataclass(eq=False)
class Deferred(ScalingPolicy):
    """Towards the plan's count one instance at a time: up while effective memory utilisation is
    above ``scale_out_above``, down while below ``scale_in_below``, each endpoint resting
    ``cooldown_s`` after an event (LT-U).

    With ``forecast_tps`` (LT-UA) the plan is no limit in the last ``last_share`` of each period (20
    minutes of an hour): where at least ``underestimated`` times the forecast load arrives, growth
    goes on above it, and where at most ``overestimated`` times does, shrinking goes on below it.
    Utilisation must be beyond its threshold in either case: section 6.4 defers scaling "as for
    LT-U" and changes only where it stops.

    ``times_s`` and ``targets`` are a schedule (see ``Scheduled``): shapes ``[steps]`` and ``[steps,
    pools]``. ``period_s`` is the length of a period, the first of which begins at 0;
    ``forecast_tps`` has shape ``[periods, pools]``: the input tokens/s forecast for all of the
    pool's model in its region, held against the mean of what arrived in ``observed_s`` (the source
    does not say over how long: 5 minutes, ours).
    """

    times_s: Times
    targets: Counts
    period_s: float = 3600.0
    forecast_tps: FloatArray | None = None
    scale_out_above: float = 0.7
    scale_in_below: float = 0.3
    cooldown_s: float = 15.0
    last_share: float = 1 / 3
    underestimated: float = 5.0
    overestimated: float = 0.5
    observed_s: float = 300.0
    interval_s: float = 15.0
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or ("lt-u" if self.forecast_tps is None else "lt-ua")
        self._steps = Steps(self.name, "targets", self.times_s, self.targets)

    def reset(self, fleet: Fleet) -> IntArray:
        self._steps.reset(fleet)
        self._ends = Endpoints(fleet)
        self._rests_until = np.full(len(self._ends), -np.inf)
        # The model in a region that an endpoint and a pool belong to: its load is forecast whole.
        places: dict[tuple[str, str], int] = {}
        for model, region, *_ in self._ends.keys:
            places.setdefault((model, region), len(places))
        self._place_of_end = np.array([places[key[:2]] for key in self._ends.keys])
        self._place = self._place_of_end[self._ends.of]
        # 1 for pools that take requests from the router
        self._enters = np.array([pool.role != "decode" for pool in fleet.pools], np.float64)
        self._arrived: deque[tuple[float, FloatArray]] = deque()
        self._seen_s = 0.0
        return self._steps.at(0.0)

    def decide(self, observation: Observation) -> IntArray:
        ends = self._ends
        now = observation.time_s
        targets = observation.ready + observation.starting
        planned = self._steps.at(now)
        short = planned - targets
        utilisation = ends.utilisation(observation)
        under, over = self._misjudged(observation)
        gap = ends.total(short)
        grows = (utilisation > self.scale_out_above) & ((gap > 0) | under)
        shrinks = (utilisation < self.scale_in_below) & ((gap < 0) | over)
        for e in np.flatnonzero((grows | shrinks) & (now >= self._rests_until)):
            step = 1 if grows[e] else -1
            pools = ends.pools[e]
            # Towards the plan where it has a pool to move, else any: the plan is reached.
            towards = [p for p in pools if short[p] * step > 0]
            if ends.move(targets, towards or pools, step):
                self._rests_until[e] = now + self.cooldown_s
        return targets

    def gauge(self, observation: Observation) -> Gauge:
        ends = self._ends
        return Gauge(
            "KV memory in use",
            True,
            np.where(ends.total(observation.ready) > 0, ends.utilisation(observation), np.nan),
            out_above=self.scale_out_above,
            in_below=self.scale_in_below,
        )

    def _misjudged(self, observation: Observation) -> tuple[BoolArray, BoolArray]:
        """Endpoints whose load the forecast under- and overestimates, in the end of a period."""
        ends, now = self._ends, observation.time_s
        nowhere = np.zeros(len(ends), np.bool_)
        if self.forecast_tps is None or not len(self.forecast_tps):
            return nowhere, nowhere
        tokens_s = np.bincount(self._place, observation.input_tps * self._enters, len(ends))
        arrived = np.asarray(tokens_s * (now - self._seen_s), np.float64)
        self._seen_s = now
        self._arrived.append((now, arrived))
        while self._arrived[0][0] <= now - self.observed_s:
            self._arrived.popleft()
        if now % self.period_s < (1 - self.last_share) * self.period_s - ROUNDING_S:
            return nowhere, nowhere
        over_s = min(self.observed_s, now)
        by_place = np.sum([tokens for _, tokens in self._arrived], axis=0) / max(over_s, 1e-9)
        observed = by_place[self._place_of_end]
        period = min(int(now // self.period_s), len(self.forecast_tps) - 1)
        forecast = np.zeros(len(ends))
        np.maximum.at(forecast, ends.of, self.forecast_tps[period])
        under = (observed >= self.underestimated * forecast) & (observed > 0)
        return under, observed <= self.overestimated * forecast
