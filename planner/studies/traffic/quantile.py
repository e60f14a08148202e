"""The quantile of the forecast that a plan stands on, chosen on the days before it (methods.md X5,
F10): from rolling forecasts alone, with nothing simulated and nothing of the window looked at.

Each earlier period is forecast from what was known at its own decision. A plan at a quantile has
room for that period's largest bin of it; a bin in which more came was not covered, and all that
came in it counts as late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from forecasting.backtest import rolling_forecasts
from forecasting.demand import REQUESTS, DemandSeries
from forecasting.errors import SeriesTooShort
from forecasting.forecast import Forecast, interpolate_quantiles
from forecasting.selection import forecaster
from planner.scenario.build import Hardware
from planner.scenario.schema import Forecast as ForecastSection
from planner.scenario.schema.planning import MEAN
from planner.studies.plain import moment
from planner.studies.progress import Progress
from planner.studies.traffic.forecasts import Height
from planner.studies.traffic.groups import Group, groups_of, series_of
from planner.studies.traffic.traffic import Traffic
from planner.studies.traffic.window import DAY_S, Window, words_of
from simulation.arrays import FloatArray

# From the median up to what forecasts hold: less than what comes every other time is no plan.
LEVELS = np.round(np.linspace(0.5, 0.95, 10), 2)
# Beyond what they hold, so many times the highest: a forecast that was too low asks for more room.
TIMES = 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0
TOP = float(LEVELS[-1])
HEIGHTS = (*(Height(float(level)) for level in LEVELS), *(Height(TOP, times) for times in TIMES))
DAYS = 7  # looked back at most: a week has every weekday once
# ... or so many decisions, where one is for longer: what one decision forecasts is too high or too
# low as a whole, so that one week says little of how far off the next one is
DECISIONS = 4
LEAST = 20  # periods: the outermost level needs one in twenty beyond it
MOST_SERIES = 24  # the largest, by what came: a choice must not take longer than the plan
STATED, CHOSEN, ASSUMED = "stated", "chosen", "assumed"


@dataclass(frozen=True, slots=True)
class PlannedQuantile:
    """What of the forecast is planned for, and why. ``covered`` is the share of what came on the
    days before, in periods, that a plan at it would have had room for."""

    tier: str  # or interactive, for all of these together
    quantile: float | None  # None: the mean
    times: float  # that; above 1 only beyond the highest that forecasts hold
    basis: str  # stated, chosen or assumed
    why: str
    wanted: float | None = None
    covered: float | None = None
    periods: int = 0
    start: datetime | None = None
    end: datetime | None = None
    usd_per_late_request: float | None = None
    load_factor: float = 1.0  # of the policy that is followed, found in rehearsal: times all that

    @property
    def height(self) -> Height:
        return Height(self.quantile, self.times)

    @property
    def words(self) -> str:
        return str(self.height)


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """A series' periods before the first decision: what a plan at each of HEIGHTS had room for
    ``[k, p]`` and what came ``[p, w]``, both per bin; NaN was not observed."""

    room: FloatArray
    came: FloatArray
    usd: float = 0.0  # of room for one amount per bin, through one period
    requests: float = 1.0  # of one amount

    @property
    def late(self) -> FloatArray:
        """Amount in bins that were not covered, by height ``[k]``."""
        over = self.came[None] > self.room[:, :, None] * (1 + 1e-9)
        return np.asarray(np.where(over, self.came, 0.0).sum(axis=(1, 2)), np.float64)


def share_covered(pasts: Sequence[Past]) -> FloatArray:
    """Of all that came, by height ``[k]``; never falls with the height."""
    came = sum(float(np.nansum(past.came)) for past in pasts)
    late = np.sum([past.late for past in pasts], axis=0)
    return np.asarray(1.0 - late / came if came > 0 else np.ones_like(late), np.float64)


def cost(pasts: Sequence[Past], late_usd: float) -> FloatArray:
    """Of the room and of late requests at ``late_usd`` each, by height ``[k]``: the newsvendor's,
    summed over what came."""
    each = [
        past.usd * past.room.sum(axis=1) + late_usd * past.requests * past.late for past in pasts
    ]
    return np.asarray(np.sum(each, axis=0), np.float64)


@dataclass(eq=False)
class Quantiles:
    """Those of a study, chosen when first asked for and kept for all windows that it is rehearsed
    on: a parameter tuned there means the same in the window."""

    hardware: Hardware
    traffic: Traffic
    window: Window
    forecast: ForecastSection
    apart: bool  # tiers are planned for each by itself
    # [l, r] of room for one input token per second, by the hour
    usd_per_tps: FloatArray | None = None
    _found: dict[bool, tuple[PlannedQuantile, ...]] = field(default_factory=dict, init=False)

    def of(self, *, at_once: bool, progress: Progress) -> tuple[PlannedQuantile, ...]:
        """By group of tiers, in their order."""
        if at_once not in self._found:
            groups = groups_of(self.hardware, apart=self.apart)
            self._found[at_once] = tuple(
                self._planned_of(group, at_once, progress) for group in groups
            )
        return self._found[at_once]

    @property
    def found(self) -> tuple[tuple[bool, PlannedQuantile], ...]:
        """Those that were asked for, with whether for all periods at once; before any was, those
        that the scenario states."""
        if self._found:
            return tuple(
                (at_once, quantile) for at_once, ones in self._found.items() for quantile in ones
            )
        stated = [self._stated(group) for group in groups_of(self.hardware, apart=self.apart)]
        return tuple((False, quantile) for quantile in stated if quantile is not None)

    def _stated(self, group: Group) -> PlannedQuantile | None:
        stated = self.forecast.quantiles.get(group.name) if self.apart else None
        stated = self.forecast.quantile if stated is None else stated
        if stated is None:
            return None
        level = None if stated == MEAN else float(stated)
        return PlannedQuantile(group.name, level, 1.0, STATED, "The scenario says so.")

    def _planned_of(self, group: Group, at_once: bool, progress: Progress) -> PlannedQuantile:
        stated = self._stated(group)
        if stated is not None:
            return stated
        progress(0.0, f"Choosing the quantile to plan {group.name} for on the days before")
        origins = past_origins(self.window, self.traffic.demand.start_s, at_once=at_once)
        pasts = self._pasts(group, origins, at_once) if len(origins) else []
        if not pasts:
            return _assumed(group, self.forecast.method)
        chosen = _chosen(group, pasts, self.forecast.late_usd, len(origins))
        begin = float(origins[0]) + _lead(self.window) * self.window.bin_s
        end = begin + len(origins) * _steps(self.window, at_once) * self.window.bin_s
        return chosen.told(self.window, self.traffic, begin, end)

    def _pasts(self, group: Group, origins: FloatArray, at_once: bool) -> list[Past]:
        """Of the largest series that the method can be tried on."""
        series = series_of(self.traffic, group)
        series.sort(key=lambda placed: -float(np.nansum(placed[1].values)))
        requests = dict(series_of(self.traffic, group, REQUESTS))
        pasts = []
        for (m, r), demand in series[:MOST_SERIES]:
            try:
                room, came = past_of(
                    demand, self.window, self.forecast.method, origins, at_once=at_once
                )
            except SeriesTooShort:
                continue
            if not np.nansum(came) > 0:
                continue
            usd = 0.0 if self.usd_per_tps is None else float(self.usd_per_tps[m, r])
            each = float(np.nansum(requests[m, r].values) / np.nansum(demand.values))
            hours = self.window.period_s / 3600
            pasts.append(Past(room, came, usd * hours / self.window.bin_s, each))
        return pasts


@dataclass(frozen=True, slots=True)
class _Choice:
    group: Group
    height: Height
    needed: float  # share covered, of as many decisions
    covered: float
    periods: int
    late_usd: float | None

    def told(
        self, window: Window, traffic: Traffic, begin_s: float, end_s: float
    ) -> PlannedQuantile:
        days = f"{words_of(begin_s, traffic.clock)} to {words_of(end_s, traffic.clock)}"
        had = f"{self.covered:.1%} of what came from {days} would have found room"
        if self.late_usd is not None:
            why = f"Least cost of room and of late requests at ${self.late_usd:g} each: {had}."
        elif self.covered >= self.needed - 1e-12:
            why = f"{self._which()} that covers {self._goal()} on the days before: {had}."
        else:
            why = (
                f"The highest that is tried, and too little: {had}, and {self._goal()} "
                "has to. Forecasts of this method were far too low then; choose another "
                "forecast.method, or give the plan more room (load_factor)."
            )
        return PlannedQuantile(
            self.group.name,
            self.height.level,
            self.height.times,
            CHOSEN,
            why,
            wanted=self.group.wanted,
            covered=self.covered,
            periods=self.periods,
            start=moment(begin_s),
            end=moment(end_s),
            usd_per_late_request=self.late_usd,
        )

    def _goal(self) -> str:
        """What has to be covered, and why it is more than the tier asks for."""
        goal = f"the {self.group.wanted:.1%} asked for"
        if round(self.needed - self.group.wanted, 3) <= 0:
            return goal
        return f"{self.needed:.1%}, {goal} and what so few decisions leave unsaid,"

    def _which(self) -> str:
        if self.height.times > 1.0:
            return "More than forecasts hold; the least"
        return "The median, the least," if self.height == HEIGHTS[0] else "The smallest"


def needed(share: float, decisions: int) -> float:
    """Share to cover on so many earlier decisions: of what may be late, the chance that the one to
    come is harder than all of them, 1 / (n + 1) were they in any order, is left over."""
    return 1.0 - (1.0 - share) * decisions / (decisions + 1)


def _chosen(group: Group, pasts: Sequence[Past], late_usd: float | None, decisions: int) -> _Choice:
    covered, least = share_covered(pasts), needed(group.wanted, decisions)
    if late_usd is not None:
        chosen = int(np.argmin(cost(pasts, late_usd)))
    else:
        enough = np.flatnonzero(covered >= least - 1e-12)
        chosen = int(enough[0]) if enough.size else len(HEIGHTS) - 1
    periods = max(past.came.shape[0] for past in pasts)
    return _Choice(group, HEIGHTS[chosen], least, float(covered[chosen]), periods, late_usd)


def _assumed(group: Group, method: str) -> PlannedQuantile:
    level = float(np.clip(group.wanted, LEVELS[0], LEVELS[-1]))
    why = (
        f"Too little came before the first decision to choose it on with {method}: the tier's own "
        f"share, at most {LEVELS[-1]:g}, stands in."
    )
    return PlannedQuantile(group.name, level, 1.0, ASSUMED, why, wanted=group.wanted)


def _lead(window: Window) -> int:
    """Bins from a decision to what it is for."""
    return 0 if window.ahead else round((window.start_s - window.origins_s[0]) / window.bin_s)


def _steps(window: Window, at_once: bool) -> int:
    """Bins that one decision is for."""
    in_one = at_once or window.ahead
    return round(window.duration_s / window.bin_s) if in_one else window.bins_per_period


def past_origins(window: Window, begins_s: float, *, at_once: bool) -> FloatArray:
    """Decisions before the window's first whose periods are over by then, one right after the
    other: DAYS or DECISIONS back at most, and at most the half of what is known, so that the first
    of them has as much to go by. None where that leaves fewer than LEAST periods."""
    known, bin_s = float(window.origins_s[0]), window.bin_s
    steps, lead = _steps(window, at_once), _lead(window)
    back = max(DAYS * DAY_S, DECISIONS * steps * bin_s)
    room = min(back, (known - begins_s) / 2) / bin_s - lead
    count = int(max(0.0, room + 1e-9) // steps)
    if count * steps < LEAST * window.bins_per_period:
        return np.empty(0)
    first = known - (lead + count * steps) * bin_s
    return np.asarray(first + steps * bin_s * np.arange(count), np.float64)


def past_of(
    series: DemandSeries, window: Window, method: str, origins: FloatArray, *, at_once: bool
) -> tuple[FloatArray, FloatArray]:
    """Room at each of HEIGHTS ``[k, p]`` and what came ``[p, w]``, of the periods that ``origins``
    decide; raises SeriesTooShort where the method cannot be fitted on what was known then."""
    lead, steps, per_period = _lead(window), _steps(window, at_once), window.bins_per_period
    if series.start_s > origins[0] - 1e-6:
        raise SeriesTooShort(f"{series.key}: nothing came before the first of its past decisions.")
    known = series.window(series.start_s, float(window.origins_s[0]))
    model = forecaster(method, horizon_bins=per_period, lead_bins=lead)
    forecasts = rolling_forecasts(known, model, origins.tolist(), lead + steps)
    foreseen = np.concatenate([at_levels(forecast)[:, lead:] for forecast in forecasts], axis=1)
    peaks = foreseen.reshape(len(LEVELS), -1, per_period).max(axis=2)
    room = np.concatenate([peaks, np.multiply.outer(TIMES, peaks[-1])])
    begin = round((float(origins[0]) - known.start_s) / window.bin_s) + lead
    came = known.values[begin : begin + foreseen.shape[1]].reshape(-1, per_period)
    return room, came


def at_levels(forecast: Forecast) -> FloatArray:
    """``Forecast.quantile`` of each of LEVELS, ``[k, steps]``."""
    return interpolate_quantiles(np.asarray(forecast.levels), forecast.quantiles, LEVELS)
