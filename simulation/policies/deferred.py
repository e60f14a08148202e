"""A plan reached when utilisation asks for it: LT-U and LT-UA (methods.md E8; SageServe, 6.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Endpoints
from simulation.policy import Observation, check_columns

ROUNDING_S = 1e-6


class Deferred:
    """Towards the plan's count one instance at a time: up while effective memory utilisation is
    above ``scale_out``, down while below ``scale_in``, each endpoint resting ``cooldown_s`` after
    an event (LT-U).

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

    def __init__(
        self,
        times_s: Sequence[float] | FloatArray,
        targets: Sequence[Sequence[int]] | IntArray,
        *,
        period_s: float = 3600.0,
        forecast_tps: FloatArray | None = None,
        scale_out: float = 0.7,
        scale_in: float = 0.3,
        cooldown_s: float = 15.0,
        last_share: float = 1 / 3,
        underestimated: float = 5.0,
        overestimated: float = 0.5,
        observed_s: float = 300.0,
        interval_s: float = 15.0,
        name: str | None = None,
    ) -> None:
        self._times_s = np.array(times_s, np.float64)
        self._targets = np.array(targets, np.int64)
        self._forecast = None if forecast_tps is None else np.array(forecast_tps, np.float64)
        self._period_s, self._last_share = period_s, last_share
        self._scale_out, self._scale_in, self._cooldown_s = scale_out, scale_in, cooldown_s
        self._under, self._over, self._observed_s = underestimated, overestimated, observed_s
        self._interval_s = interval_s
        self._name = name or ("lt-u" if forecast_tps is None else "lt-ua")
        if self._targets.ndim != 2 or len(self._targets) != len(self._times_s):
            raise SimulationError(f"Policy {self._name!r}: targets must be periods by pools.")
        if np.any(np.diff(self._times_s) <= 0):
            raise SimulationError(f"Policy {self._name!r}: times_s must increase.")
        self._ends: Endpoints | None = None
        self._initial = np.zeros(0, np.int64)
        self._rests_until = np.zeros(0)
        # The model in a region that an endpoint and a pool belong to: its load is forecast whole.
        self._place_of_end = self._place = np.zeros(0, np.int64)
        self._enters = np.zeros(0)  # 1 for pools that take requests from the router
        self._arrived: deque[tuple[float, FloatArray]] = deque()
        self._seen_s = 0.0

    @property
    def name(self) -> str:
        return self._name

    @property
    def interval_s(self) -> float:
        return self._interval_s

    def reset(self, fleet: Fleet) -> IntArray:
        check_columns(self._name, "targets", self._targets, fleet)
        self._ends = Endpoints(fleet)
        self._rests_until = np.full(len(self._ends), -np.inf)
        places: dict[tuple[str, str], int] = {}
        for model, region, *_ in self._ends.keys:
            places.setdefault((model, region), len(places))
        self._place_of_end = np.array([places[key[:2]] for key in self._ends.keys])
        self._place = self._place_of_end[self._ends.of]
        self._enters = np.array([pool.role != "decode" for pool in fleet.pools], np.float64)
        self._initial = np.array([pool.initial for pool in fleet.pools], np.int64)
        self._arrived.clear()
        self._seen_s = 0.0
        return self._planned(0.0)

    def decide(self, observation: Observation) -> IntArray:
        ends = self._ends
        assert ends is not None, "reset comes first"
        now = observation.time_s
        targets = observation.ready + observation.starting
        planned = self._planned(now)
        short = planned - targets
        utilisation = ends.utilisation(observation)
        under, over = self._misjudged(observation)
        gap = ends.total(short)
        grows = (utilisation > self._scale_out) & ((gap > 0) | under)
        shrinks = (utilisation < self._scale_in) & ((gap < 0) | over)
        for e in np.flatnonzero((grows | shrinks) & (now >= self._rests_until)):
            step = 1 if grows[e] else -1
            pools = ends.pools[e]
            # Towards the plan where it has a pool to move, else any: the plan is reached.
            towards = [p for p in pools if short[p] * step > 0]
            if ends.move(targets, towards or pools, step):
                self._rests_until[e] = now + self._cooldown_s
        return targets

    def _misjudged(self, observation: Observation) -> tuple[BoolArray, BoolArray]:
        """Endpoints whose load the forecast under- and overestimates, in the end of a period."""
        ends, now = self._ends, observation.time_s
        assert ends is not None
        nowhere = np.zeros(len(ends), np.bool_)
        if self._forecast is None or not len(self._forecast):
            return nowhere, nowhere
        tokens_s = np.bincount(self._place, observation.input_tps * self._enters, len(ends))
        arrived = np.asarray(tokens_s * (now - self._seen_s), np.float64)
        self._seen_s = now
        self._arrived.append((now, arrived))
        while self._arrived[0][0] <= now - self._observed_s:
            self._arrived.popleft()
        if now % self._period_s < (1 - self._last_share) * self._period_s - ROUNDING_S:
            return nowhere, nowhere
        over_s = min(self._observed_s, now)
        by_place = np.sum([tokens for _, tokens in self._arrived], axis=0) / max(over_s, 1e-9)
        observed = by_place[self._place_of_end]
        period = min(int(now // self._period_s), len(self._forecast) - 1)
        forecast = np.zeros(len(ends))
        np.maximum.at(forecast, ends.of, self._forecast[period])
        busy = observed > 0
        return (observed >= self._under * forecast) & busy, observed <= self._over * forecast

    def _planned(self, time_s: float) -> IntArray:
        step = int(np.searchsorted(self._times_s, time_s, side="right")) - 1
        return self._initial.copy() if step < 0 else self._targets[step].copy()
