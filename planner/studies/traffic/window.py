"""Which stretch of time is planned, how often decisions fall, and what is known at each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from planner.errors import ScenarioError
from planner.scenario.settings import NO_GROWTH, Growth, WindowSettings
from planner.studies.traffic.demand import Demand
from simulation.arrays import FloatArray

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
HISTORY_BINS = 27  # a window left to us leaves so many before its first decision: ARIMA needs 24
UTC_CLOCK = "utc"
MAX_PERIODS = 2_000  # each is an integer program of its own: twelve weeks of hours
UNGROWN = (  # of what is replayed from the time before a window ahead
    "traffic.growth is in what is planned for, and not in the requests that are replayed: those "
    "are of the time before the window, as they came."
)
MAX_BINS = 100_000  # of one window, forecast step by step


@dataclass(frozen=True, slots=True)
class Window:
    """``[start_s, end_s)`` in epoch seconds, cut into periods of ``period_s``, on bin edges."""

    start_s: float
    end_s: float
    period_s: float
    lead_s: float
    bin_s: float
    ahead: bool  # after the trace: replayed on the forecast, since nothing is known there
    growth: Growth = NO_GROWTH  # of what comes ahead

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def observed_s(self) -> tuple[float, float]:
        """The window, or where it is ahead of the trace the stretch as long before it."""
        end_s = self.start_s if self.ahead else self.end_s
        return end_s - self.duration_s, end_s

    @property
    def period_starts_s(self) -> FloatArray:
        periods = round(self.duration_s / self.period_s)
        return np.asarray(self.start_s + self.period_s * np.arange(periods), np.float64)

    @property
    def origins_s(self) -> FloatArray:
        """When each period's decision is taken: its start less the lead, down to a bin edge.

        What came before that moment is known; nothing else is. Ahead of the trace it is the
        trace's end for every period.
        """
        if self.ahead:
            return np.full(len(self.period_starts_s), self.start_s)
        lead = np.ceil(self.lead_s / self.bin_s - 1e-9) * self.bin_s
        return np.asarray(self.period_starts_s - lead, np.float64)

    @property
    def grown(self) -> FloatArray:
        """How many times what a forecast says is planned for and drawn, ``[bins]``: ahead of the
        trace as the scenario's growth says, inside it 1."""
        bins = round(self.duration_s / self.bin_s)
        if not self.ahead:
            return np.ones(bins)
        return self.growth.at(self.bin_s * (np.arange(bins, dtype=np.float64) + 0.5))

    @property
    def bins_per_period(self) -> int:
        return round(self.period_s / self.bin_s)


def resolve_window(horizon: WindowSettings, demand: Demand, clock: str = UTC_CLOCK) -> Window:
    """The scenario's horizon on the demand's bins; raises ScenarioError naming field and remedy.

    ``clock`` says whether the demand's times are on the calendar ("utc") or count from the start of
    its trace ("relative").
    """
    bin_s, lead = demand.bin_s, horizon.lead_s
    span = demand.end_s - demand.start_s
    ahead = horizon.start == "end"
    room = span if ahead else span - np.ceil(lead / bin_s) * bin_s - HISTORY_BINS * bin_s
    half = span / 2 if room < span / 4 else min(span / 2, room)
    duration = horizon.duration_s or (DAY_S if span >= 2 * DAY_S else half)
    period = _period(horizon.period_s, duration, bin_s)
    periods_s = max(1.0, np.floor(duration / period + 1e-9)) * period
    if horizon.duration_s and abs(periods_s - horizon.duration_s) > 1e-6:
        raise ScenarioError(
            f"horizon.duration_s: {duration:g} s is not a whole number of periods of {period:g} s; "
            f"choose {periods_s:g}, or set horizon.period_s."
        )
    duration = periods_s
    _check_extent(duration, period, bin_s)
    if isinstance(horizon.start, datetime):
        start = _given_start(horizon.start, duration, demand, clock)
    else:
        start = demand.end_s if ahead else demand.end_s - duration
    window = Window(
        float(start), float(start + duration), period, lead, bin_s, ahead, horizon.growth
    )
    first = float(window.origins_s[0])
    if first < demand.start_s + 2 * bin_s:
        raise ScenarioError(
            f"horizon: the first decision falls at {words_of(first, clock)}, before there is any "
            f"history (traffic begins {words_of(demand.start_s, clock)}); start later, shorten "
            "duration_s or lead_s, or use a longer trace."
        )
    return window


def _given_start(stated: datetime, duration_s: float, demand: Demand, clock: str) -> float:
    """The bin edge nearest to the scenario's date, or to its seconds from the start of a trace
    without dates, where the window fits into the traffic."""
    moment = stated if stated.tzinfo else stated.replace(tzinfo=UTC)
    if clock != UTC_CLOCK and moment.timestamp() >= demand.end_s - 1e-6:
        raise ScenarioError(
            "horizon.start: the traffic has no calendar times, only seconds from its start, and "
            f"ends at {demand.end_s:,.0f} s; give a number of seconds before that, leave it out to "
            "plan the last part, or choose 'end' to plan ahead of it."
        )
    bins = np.round((moment.timestamp() - demand.start_s) / demand.bin_s)
    start = float(demand.start_s + bins * demand.bin_s)
    ends = words_of(demand.end_s, clock)
    if start >= demand.end_s - 1e-6:
        raise ScenarioError(
            f"horizon.start: {moment:%Y-%m-%d %H:%M} is after the traffic, which ends {ends}; "
            "choose an earlier time, or 'end' to plan ahead of it."
        )
    if start + duration_s > demand.end_s + 1e-6:
        raise ScenarioError(
            f"horizon.duration_s: {duration_s:g} s from {words_of(start, clock)} is past the end "
            f"of the traffic at {ends}; shorten it to {demand.end_s - start:g} or less."
        )
    return start


def _check_extent(duration_s: float, period_s: float, bin_s: float) -> None:
    periods, bins = round(duration_s / period_s), round(duration_s / bin_s)
    if periods > MAX_PERIODS:
        raise ScenarioError(
            f"horizon.period_s: {duration_s:g} s in periods of {period_s:g} s are {periods:,} "
            f"decisions and {MAX_PERIODS:,} are allowed; choose a longer period_s or a shorter "
            "duration_s."
        )
    if bins > MAX_BINS:
        raise ScenarioError(
            f"horizon.duration_s: {duration_s:g} s are {bins:,} bins of {bin_s:g} s and "
            f"{MAX_BINS:,} are allowed; choose a shorter duration_s or a larger traffic.bin_s."
        )


def _period(stated: float | None, duration_s: float, bin_s: float) -> float:
    if stated is None:
        usual = HOUR_S if duration_s >= 6 * HOUR_S else max(300.0, duration_s / 12)
        return float(max(1, round(usual / bin_s)) * bin_s)
    if abs(stated / bin_s - round(stated / bin_s)) > 1e-6 or stated < bin_s:
        raise ScenarioError(
            f"horizon.period_s: {stated:g} s is not a whole multiple of the bin width {bin_s:g} s; "
            f"choose {np.ceil(stated / bin_s) * bin_s:g}, or set traffic.bin_s."
        )
    return float(stated)


def words_of(epoch_s: float, clock: str) -> str:
    """A moment for a sentence; a relative one in seconds from the start of the trace."""
    if clock != UTC_CLOCK:
        return f"{epoch_s:,.0f} s"
    when = datetime.fromtimestamp(epoch_s, UTC)
    return f"{when.day} {when:%b %Y, %H:%M} UTC"
