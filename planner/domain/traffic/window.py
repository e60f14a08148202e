"""Resolve the planned window: its periods, its scaling decisions and the data known at each."""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from planner.domain.formats import when
from planner.domain.traffic.demand import Demand
from planner.errors import ScenarioError
from planner.inputs.scenario.schema import Growth
from planner.inputs.scenario.settings import NO_GROWTH, WindowSettings
from simulation.arrays import FloatArray

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
HISTORY_BINS = 27  # bins kept before the first decision of a default window: ARIMA needs 24
UTC_CLOCK = "utc"
MAX_PERIODS = 2_000  # each needs its own integer program; 2,000 hours are twelve weeks
MAX_BINS = 100_000  # bins of one window: each is forecast


@dataclass(frozen=True, slots=True)
class Window:
    """The window ``[start_s, end_s)`` in epoch seconds, cut into periods of ``period_s``.

    All edges are bin edges.
    """

    start_s: float
    end_s: float
    period_s: float  # time between decisions
    lead_s: float  # from a decision to the period that it plans
    bin_s: float  # bin width of the demand
    after_traffic: bool  # begins at its end: requests are drawn from the forecast
    growth: Growth = NO_GROWTH  # growth of the demand ahead of the trace

    @property
    def duration_s(self) -> float:
        """Return the length of the window in seconds."""
        return self.end_s - self.start_s

    @property
    def observed_s(self) -> tuple[float, float]:
        """Return (start, end) of the window, in epoch s.

        If the window is ahead of the trace, return the time of equal length right before it.
        """
        end_s = self.start_s if self.after_traffic else self.end_s
        return end_s - self.duration_s, end_s

    @property
    def period_starts_s(self) -> FloatArray:
        """Return the start of each period in epoch seconds, ``[period]``."""
        periods = round(self.duration_s / self.period_s)
        return np.asarray(self.start_s + self.period_s * np.arange(periods), np.float64)

    @property
    def origins_s(self) -> FloatArray:
        """Return the time of the decision for each period, ``[periods]``, in epoch seconds.

        It is the start of the period less the lead time, moved to the bin edge before. A decision
        knows only the bins before it. If the window is after the traffic, all decisions are at its
        end.
        """
        if self.after_traffic:
            return np.full(len(self.period_starts_s), self.start_s)
        lead = np.ceil(self.lead_s / self.bin_s - 1e-9) * self.bin_s
        return np.asarray(self.period_starts_s - lead, np.float64)

    @property
    def first_decision_s(self) -> float:
        """Return the time of the first decision, in epoch seconds."""
        return float(self.origins_s[0])

    @property
    def replay_notes(self) -> list[str]:
        """Return a note if plans count on growth that replays of earlier requests do not have."""
        if not self.after_traffic or not self.growth:
            return []
        return [
            "traffic.growth is in the planned demand. The replayed requests come from before the "
            "window, without growth."
        ]

    @property
    def growth_factors(self) -> FloatArray:
        """Return the factor on the forecast in each bin, ``[bins]``.

        Ahead of the trace, it is the scenario's growth at the middle of the bin. Otherwise it is 1.
        """
        bins = round(self.duration_s / self.bin_s)
        if not self.after_traffic:
            return np.ones(bins)
        middle_s = self.bin_s * (np.arange(bins, dtype=np.float64) + 0.5)
        return self.growth.at(middle_s)

    @property
    def bins_per_period(self) -> int:
        """Return the number of bins of a period."""
        return round(self.period_s / self.bin_s)


def resolve_window(horizon: WindowSettings, demand: Demand, clock: str = UTC_CLOCK) -> Window:
    """Return the window of the scenario's horizon, aligned with the demand's bins.

    ``clock`` is "utc" if times of the demand are calendar times, and "relative" if they count from
    the start of the trace. Raise ScenarioError, with the field and a remedy, if the window does not
    fit.
    """
    bin_s, after_traffic = demand.bin_s, horizon.start == "end"
    wanted = horizon.duration_s or _usual_duration_s(horizon, demand)
    period = _period(horizon.period_s, wanted, bin_s)
    duration = max(1.0, np.floor(wanted / period + 1e-9)) * period
    if horizon.duration_s and abs(duration - horizon.duration_s) > 1e-6:
        raise ScenarioError(
            f"horizon.duration_s: {wanted:g} s is not a whole number of periods of {period:g} s. "
            f"Choose {duration:g}, or set horizon.period_s."
        )
    _check_extent(duration, period, bin_s)
    start = demand.end_s if after_traffic else demand.end_s - duration
    if isinstance(horizon.start, datetime):
        start = _start_from_scenario(horizon.start, duration, demand, clock)
    end = float(start + duration)
    window = Window(
        float(start), end, period_s=period, lead_s=horizon.lead_s, bin_s=bin_s,
        after_traffic=after_traffic, growth=horizon.growth,
    )  # fmt: skip
    _check_history(window, demand, clock)
    return window


def _check_history(window: Window, demand: Demand, clock: str) -> None:
    """Raise ScenarioError unless two bins of ``demand`` come before the first decision."""
    first_s = window.first_decision_s
    if first_s < demand.start_s + 2 * demand.bin_s:
        raise ScenarioError(
            f"horizon: the first decision falls at {words_of(first_s, clock)}, before there is any "
            f"history (traffic begins {words_of(demand.start_s, clock)}). Start later, shorten "
            "duration_s or lead_s, or use a longer trace."
        )


def _usual_duration_s(horizon: WindowSettings, demand: Demand) -> float:
    """Return a day, or half of a trace shorter than two days, in seconds.

    Half a trace becomes less to leave history, unless hardly a window would be left.
    """
    span, bin_s = demand.end_s - demand.start_s, demand.bin_s
    if span >= 2 * DAY_S:
        return DAY_S
    if horizon.start == "end":
        return span / 2
    # The longest window that leaves history before its first decision.
    lead = np.ceil(horizon.lead_s / bin_s) * bin_s
    longest = float(span - lead - HISTORY_BINS * bin_s)
    return span / 2 if longest < span / 4 else min(span / 2, longest)


def _start_from_scenario(stated: datetime, duration_s: float, demand: Demand, clock: str) -> float:
    """Return the bin edge nearest to ``stated``, the scenario's start of the window.

    Without calendar times (``clock``), the epoch seconds of ``stated`` count from the start of the
    trace. Raise ScenarioError if the window does not fit into the traffic.
    """
    moment = stated if stated.tzinfo else stated.replace(tzinfo=UTC)
    end_s, ends = demand.end_s, words_of(demand.end_s, clock)
    if clock != UTC_CLOCK and moment.timestamp() >= end_s - 1e-6:
        raise ScenarioError(
            "horizon.start: the traffic has no calendar times, only seconds from its start, and "
            f"ends {ends}. Give a number below {end_s:.0f}, leave it out to plan the last part, or "
            "choose 'end' to plan ahead of it."
        )
    bins = np.round((moment.timestamp() - demand.start_s) / demand.bin_s)
    start = float(demand.start_s + bins * demand.bin_s)
    if start >= end_s - 1e-6:
        raise ScenarioError(
            f"horizon.start: {moment:%Y-%m-%d %H:%M} is after the traffic, which ends {ends}. "
            "Choose an earlier time, or 'end' to plan ahead of it."
        )
    if start + duration_s > end_s + 1e-6:
        raise ScenarioError(
            f"horizon.duration_s: {duration_s:g} s from {words_of(start, clock)} is past the end "
            f"of the traffic at {ends}. Shorten it to {end_s - start:g} or less."
        )
    return start


def _check_extent(duration_s: float, period_s: float, bin_s: float) -> None:
    """Raise ScenarioError if the window has too many periods or bins."""
    periods, bins = round(duration_s / period_s), round(duration_s / bin_s)
    if periods > MAX_PERIODS:
        raise ScenarioError(
            f"horizon.period_s: {duration_s:g} s in periods of {period_s:g} s are {periods:,} "
            f"decisions and {MAX_PERIODS:,} are allowed. Choose a longer period_s or a shorter "
            "duration_s."
        )
    if bins > MAX_BINS:
        raise ScenarioError(
            f"horizon.duration_s: {duration_s:g} s are {bins:,} bins of {bin_s:g} s and "
            f"{MAX_BINS:,} are allowed. Choose a shorter duration_s or a larger traffic.bin_s."
        )


def _period(stated: float | None, duration_s: float, bin_s: float) -> float:
    """Return the length of a period in seconds: as stated, or a default by that of the window.

    Raise ScenarioError if the stated length is not a multiple of the bins.
    """
    if stated is None:
        usual = HOUR_S if duration_s >= 6 * HOUR_S else max(300.0, duration_s / 12)
        return float(max(1, round(usual / bin_s)) * bin_s)
    bins = stated / bin_s
    if stated < bin_s:
        raise ScenarioError(
            f"horizon.period_s: {stated:g} s is shorter than the bins of {bin_s:g} s. Choose "
            f"{bin_s:g}, or set it and traffic.bin_s to {bin_s / np.ceil(bin_s / stated):g}."
        )
    if abs(bins - round(bins)) > 1e-6:
        longer = np.ceil(bins) * bin_s
        raise ScenarioError(
            f"horizon.period_s: {stated:g} s is not a whole multiple of the bins of {bin_s:g} s. "
            f"Choose {longer - bin_s:g} or {longer:g}, or set traffic.bin_s."
        )
    return float(stated)


def words_of(epoch_s: float, clock: str) -> str:
    """Return a moment in words: date and time, or day of the trace and time on a relative clock."""
    return when(datetime.fromtimestamp(epoch_s, UTC), clock)
