"""Choose the forecast percentile of a plan on the days before it (methods.md X5, F10).

The choice uses rolling forecasts only. It simulates nothing and uses no data of the window.

Each earlier period is forecast from the data known at its own decision. A plan at a percentile has
capacity for the largest bin of that percentile in the period. In a bin with more demand, all demand
counts as late. A *planning level* is what a plan provides for: a percentile of the forecast, times
a factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np

from forecasting.backtest import rolling_forecasts
from forecasting.demand import REQUESTS, DemandSeries
from forecasting.errors import SeriesTooShort
from forecasting.forecast import Forecast, interpolate_quantiles
from forecasting.selection import forecaster
from planner.domain.progress import Progress
from planner.domain.serialise import moment
from planner.domain.traffic.forecasts import PlanningLevel, RollingArguments, lead_bins
from planner.domain.traffic.groups import Group, Placed, groups_of, series_of
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import DAY_S, Window
from planner.domain.traffic.window_rank import span_words
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.schema import Forecast as ForecastSection
from planner.inputs.scenario.schema.planning import MEAN
from planner.second_process import begin, result_of
from simulation.arrays import FloatArray

# From the median up to the highest quantile of the forecasts. A plan below the median would be
# too small in every other period.
QUANTILE_LEVELS = np.round(np.linspace(0.5, 0.95, 10), 2)
# Factors on the highest quantile, for forecasts that were too low in the past.
TOP_FACTORS = 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0
TOP_QUANTILE = float(QUANTILE_LEVELS[-1])
PLANNING_LEVELS = (
    *(PlanningLevel(float(level)) for level in QUANTILE_LEVELS),
    *(PlanningLevel(TOP_QUANTILE, factor) for factor in TOP_FACTORS),
)
# At most PAST_DAYS days or PAST_DECISIONS decisions are evaluated, whichever is longer. A week has
# every weekday once. The errors of one decision are correlated, so a decision for a whole week says
# little about the next week.
PAST_DAYS = 7
PAST_DECISIONS = 4
MIN_PERIODS = 20  # smallest number of periods: above P95, the highest percentile, is one in twenty
MAX_SERIES = 24  # only the largest series, so that the choice does not take longer than the plan
STATED, CHOSEN, ASSUMED = "stated", "chosen", "assumed"


@dataclass(frozen=True, slots=True)
class PlannedQuantile:
    """The forecast percentile that a group of tiers is planned for, and the reason.

    ``covered`` is the share of past demand that a plan at this percentile would have covered. It
    was found on ``periods`` past periods, from ``start`` to ``end``. ``wanted`` is the highest SLO
    attainment target of the tiers.
    """

    tier: str  # name of the tier; "interactive" for all interactive tiers together
    quantile: float | None  # None: the mean
    times: float  # factor on the quantile; above 1 only with the highest quantile
    basis: str  # stated, chosen or assumed
    why: str
    wanted: float | None = None
    covered: float | None = None
    periods: int = 0
    start: datetime | None = None
    end: datetime | None = None
    usd_per_late_request: float | None = None
    load_factor: float = 1.0  # further factor: the tuned value of the recommended policy

    @property
    def planning_level(self) -> PlanningLevel:
        """Return the quantile and the factor to plan for, without the load factor."""
        return PlanningLevel(self.quantile, self.times)


@dataclass(frozen=True, slots=True, eq=False)
class PastPeriods:
    """The past periods of one series: the capacity that plans would have had, and the demand.

    Both are in input tokens per bin. NaN marks bins that were not observed.
    """

    capacity: FloatArray  # [planning level, period] capacity of a plan at each of PLANNING_LEVELS
    actual: FloatArray  # [period, bin] actual demand
    usd_per_token: float = 0.0  # dollars for one period of a capacity of one token per bin
    requests_per_token: float = 1.0

    @property
    def late_tokens(self) -> FloatArray:
        """Return the demand in bins where it exceeded the capacity, ``[planning level]``."""
        # Compare every bin with the capacity of its period, [planning level, period, bin].
        exceeds = self.actual[None] > self.capacity[:, :, None] * (1 + 1e-9)
        return np.asarray(np.where(exceeds, self.actual, 0.0).sum(axis=(1, 2)), np.float64)


def share_covered(pasts: Sequence[PastPeriods]) -> FloatArray:
    """Return the share of past demand that plans at each of ``PLANNING_LEVELS`` would have covered.

    The demand of all series is summed. Without demand, the share is 1.
    """
    demand = sum(float(np.nansum(past.actual)) for past in pasts)
    late = np.sum([past.late_tokens for past in pasts], axis=0)
    if not demand > 0:
        return np.ones(len(late))
    return np.asarray(1.0 - late / demand, np.float64)


def cost_by_level(pasts: Sequence[PastPeriods], late_usd: float) -> FloatArray:
    """Return the cost of plans at each of ``PLANNING_LEVELS`` in the past periods, in dollars.

    It is the newsvendor cost: that of the capacity, plus ``late_usd`` for each late request.
    """
    cost = np.zeros(len(PLANNING_LEVELS))
    for past in pasts:
        late_requests = past.requests_per_token * past.late_tokens
        cost += past.usd_per_token * past.capacity.sum(axis=1) + late_usd * late_requests
    return cost


@dataclass(eq=False)
class Quantiles:
    """The forecast percentiles that the plans of a study use; each is chosen when first needed.

    All backtest windows use the same percentiles, so that a tuned parameter means the same in a
    backtest and in the planned window.
    """

    hardware: Hardware
    traffic: Traffic
    window: Window
    forecast: ForecastSection
    tiers_planned_separately: bool
    # [model, region] dollars per hour of capacity for one input token per second
    usd_per_tps: FloatArray | None = None
    # Chosen so far, by ``at_once``.
    _chosen: dict[bool, tuple[PlannedQuantile, ...]] = field(default_factory=dict, init=False)

    def planned_quantiles(
        self, *, at_once: bool, progress: Progress
    ) -> tuple[PlannedQuantile, ...]:
        """Return the planned percentile of each group of tiers, in the order of ``groups_of``.

        It is chosen at the first call and reused. ``at_once``: one decision plans the whole window,
        so its forecasts reach further ahead.
        """
        if at_once not in self._chosen:
            groups = groups_of(self.hardware, one_per_tier=self.tiers_planned_separately)
            self._chosen[at_once] = tuple(
                self._quantile_of_group(group, at_once, progress) for group in groups
            )
        return self._chosen[at_once]

    @property
    def chosen_so_far(self) -> tuple[tuple[bool, PlannedQuantile], ...]:
        """Return (at_once, percentile) of each percentile chosen so far.

        If no plan has needed one, return those that the scenario states, with False.
        """
        chosen = [(at_once, row) for at_once, rows in self._chosen.items() for row in rows]
        if not chosen:
            for group in groups_of(self.hardware, one_per_tier=self.tiers_planned_separately):
                stated = self._scenario_quantile(group)
                if stated is not None:
                    chosen.append((False, stated))
        return tuple(chosen)

    def _scenario_quantile(self, group: Group) -> PlannedQuantile | None:
        """Return the percentile that the scenario sets for a group of tiers, or None."""
        stated = self.forecast.quantile
        if self.tiers_planned_separately:
            stated = self.forecast.quantiles.get(group.name, stated)
        if stated is None:
            return None
        level = None if stated == MEAN else float(stated)  # a level of None plans for the mean
        return PlannedQuantile(
            group.name, level, times=1.0, basis=STATED, why="Set by the scenario."
        )

    def _quantile_of_group(
        self, group: Group, at_once: bool, progress: Progress
    ) -> PlannedQuantile:
        """Return a group's percentile: the scenario's, else the one chosen on past periods.

        With too little history, it follows from the SLO target. ``at_once``: all periods are
        planned at the first decision.
        """
        stated = self._scenario_quantile(group)
        if stated is not None:
            return stated
        progress(0.0, f"Choosing the forecast percentile of {group.name}")
        origins = past_origins(self.window, self.traffic.demand.start_s, at_once=at_once)
        pasts = self._past_periods(group, origins, at_once) if len(origins) else []
        if not pasts:
            return _percentile_of_target(group)
        start = float(origins[0]) + lead_bins(self.window) * self.window.bin_s
        end = start + len(origins) * _bins_per_decision(self.window, at_once) * self.window.bin_s
        days = span_words(start, end, self.traffic.clock)
        chosen = _choose_percentile(group, pasts, self.forecast.late_usd, len(origins), days)
        return replace(chosen, start=moment(start), end=moment(end))

    def begin_forecasts(self, *, at_once: bool) -> None:
        """Begin the forecasts for ``planned_quantiles`` in a second process, if there is one.

        ``at_once``: all periods are planned at the first decision.
        """
        origins = past_origins(self.window, self.traffic.demand.start_s, at_once=at_once)
        for group in groups_of(self.hardware, one_per_tier=self.tiers_planned_separately):
            if self._scenario_quantile(group) is None and len(origins):
                for _, demand in largest_series(self.traffic, group):
                    begin(
                        rolling_forecasts,
                        *past_forecast_arguments(
                            demand, self.window, self.forecast.method, origins, at_once=at_once
                        ),
                    )

    def _past_periods(self, group: Group, origins: FloatArray, at_once: bool) -> list[PastPeriods]:
        """Return the past periods of the largest series (model x region) of a group.

        ``origins`` are the times of past decisions, in epoch s. Series with too little history, or
        without demand, are omitted. ``at_once``: all periods are planned at the first decision.
        """
        requests = dict(series_of(self.traffic, group, REQUESTS))
        method, hours = self.forecast.method, self.window.period_s / 3600
        pasts = []
        for place, demand in largest_series(self.traffic, group):
            try:
                capacity, actual = past_capacity_and_demand(
                    demand, self.window, method, origins, at_once=at_once
                )
            except SeriesTooShort:
                continue
            if not np.nansum(actual) > 0:
                continue
            usd_per_tps_hour = 0.0 if self.usd_per_tps is None else float(self.usd_per_tps[place])
            # The price of capacity for one more token in each bin of a period.
            usd_per_token = usd_per_tps_hour * hours / self.window.bin_s
            requests_per_token = np.nansum(requests[place].values) / np.nansum(demand.values)
            pasts.append(PastPeriods(capacity, actual, usd_per_token, float(requests_per_token)))
        return pasts


def largest_series(traffic: Traffic, group: Group) -> list[Placed]:
    """Return the largest series (model x region) of a group, at most ``MAX_SERIES``."""
    series = series_of(traffic, group)
    series.sort(key=lambda placed: -float(np.nansum(placed[1].values)))
    return series[:MAX_SERIES]


def coverage_needed(share: float, decisions: int) -> float:
    """Return the share of past demand to cover, so that the SLO target ``share`` is met next time.

    It is above the target, because only ``decisions`` past decisions are known.
    """
    # The next decision is harder than all earlier ones with probability 1 / (decisions + 1). Keep
    # that part of the permitted late share in reserve.
    return 1.0 - (1.0 - share) * decisions / (decisions + 1)


def _choose_percentile(
    group: Group, pasts: Sequence[PastPeriods], late_usd: float | None, decisions: int, days: str
) -> PlannedQuantile:
    """Return the percentile, and the factor on it, that would have been best in past periods.

    It is one of ``PLANNING_LEVELS``: the cheapest, if late requests have a price (``late_usd``,
    dollars each). Otherwise it is the lowest that covers enough demand, or the highest if none
    does. ``decisions`` is the number of past decisions. ``days`` names their time in the reason.
    """
    shares, needed = share_covered(pasts), coverage_needed(group.target, decisions)
    enough = np.flatnonzero(shares >= needed - 1e-12)  # indices of levels that cover enough
    required = f" Required: {needed:.1%} (target {group.target:.1%} plus a margin)."
    if late_usd is not None:
        chosen = int(np.argmin(cost_by_level(pasts, late_usd)))
        why = f"Least cost of replicas and of late requests at ${late_usd:g} each."
        required = ""
    elif not enough.size:
        chosen = len(PLANNING_LEVELS) - 1
        why = "Highest percentile tried, but too low."
        required += " Choose another forecast.method, or raise load_factor."
    else:
        chosen = int(enough[0])
        why = "Lowest percentile that covers demand often enough."
        if PLANNING_LEVELS[chosen].factor > 1.0:
            why = "Smallest factor on the highest percentile that covers demand often enough."
    planning_level, covered = PLANNING_LEVELS[chosen], float(shares[chosen])
    return PlannedQuantile(
        tier=group.name,
        quantile=planning_level.quantile,
        times=planning_level.factor,
        basis=CHOSEN,
        why=f"{why} Demand covered in backtests: {covered:.1%} ({days}).{required}",
        wanted=group.target,
        covered=covered,
        periods=max(len(past.actual) for past in pasts),
        usd_per_late_request=late_usd,
    )


def _percentile_of_target(group: Group) -> PlannedQuantile:
    """Return the percentile for a short history: the SLO target, within ``QUANTILE_LEVELS``."""
    level = float(np.clip(group.target, QUANTILE_LEVELS[0], QUANTILE_LEVELS[-1]))
    reason = (
        "Too little history to choose the forecast percentile automatically. Used: the tier's "
        f"target, at most {QUANTILE_LEVELS[-1]:g}."
    )
    return PlannedQuantile(
        group.name, level, times=1.0, basis=ASSUMED, why=reason, wanted=group.target
    )


def _bins_per_decision(window: Window, at_once: bool) -> int:
    """Return how many bins one decision plans: those of a period; with ``at_once``, all bins."""
    one_decision = at_once or window.after_traffic
    return round(window.duration_s / window.bin_s) if one_decision else window.bins_per_period


def past_origins(window: Window, begins_s: float, *, at_once: bool) -> FloatArray:
    """Return the times of past decisions by which to choose a percentile, in epoch seconds.

    Their periods follow each other without a gap, up to the window's first decision. They reach
    back ``PAST_DAYS`` days or ``PAST_DECISIONS`` decisions, whichever is longer, but into at most
    half of the data, which begins at ``begins_s``. With fewer than ``MIN_PERIODS`` periods, the
    result is empty. With ``at_once``, one decision plans the whole window.
    """
    known_until_s, bin_s = window.first_decision_s, window.bin_s
    planned, lead = _bins_per_decision(window, at_once), lead_bins(window)  # bins
    planned_s = planned * bin_s
    longest_s = max(PAST_DAYS * DAY_S, PAST_DECISIONS * planned_s)
    half_known_s = (known_until_s - begins_s) / 2
    usable = min(longest_s, half_known_s) / bin_s - lead
    decisions = int(max(0.0, usable + 1e-9) // planned)
    if decisions * planned < MIN_PERIODS * window.bins_per_period:
        return np.empty(0)
    first_s = known_until_s - (lead + decisions * planned) * bin_s
    return np.asarray(first_s + planned_s * np.arange(decisions), np.float64)


def past_capacity_and_demand(
    series: DemandSeries, window: Window, method: str, origins: FloatArray, *, at_once: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the capacity of past plans ``[planning level, period]``, and demand ``[period, bin]``.

    There is a plan for each of ``PLANNING_LEVELS``. Its capacity in a period is the largest bin of
    the forecast at that level. The periods are those that the decisions at ``origins`` (epoch s)
    planned. With ``at_once``, one decision plans the whole window. Raises SeriesTooShort if
    ``method`` cannot be fitted to the data known at a decision.
    """
    lead, per_period = lead_bins(window), window.bins_per_period
    arguments = past_forecast_arguments(series, window, method, origins, at_once=at_once)
    known_series = arguments.series
    if known_series.start_s > origins[0] - 1e-6:
        raise SeriesTooShort(f"{series.key}: its traffic begins after the first past decision.")
    forecasts = result_of(rolling_forecasts, *arguments)
    # Forecasts of all periods, [quantile level, bin], without the lead time of each decision.
    after_lead = [quantiles_at_levels(forecast)[:, lead:] for forecast in forecasts]
    quantiles = np.concatenate(after_lead, axis=1)
    # Planning levels are the quantiles, and then factors on the highest one: [level, period].
    peaks = quantiles.reshape(len(QUANTILE_LEVELS), -1, per_period).max(axis=2)
    capacity = np.concatenate([peaks, np.multiply.outer(TOP_FACTORS, peaks[-1])])
    first = round((float(origins[0]) - known_series.start_s) / window.bin_s) + lead
    demand = known_series.values[first : first + quantiles.shape[1]].reshape(-1, per_period)
    return capacity, demand


def past_forecast_arguments(
    series: DemandSeries, window: Window, method: str, origins: FloatArray, *, at_once: bool
) -> RollingArguments:
    """Return the arguments of ``rolling_forecasts`` for the past decisions at ``origins``.

    With ``at_once``, one decision plans the whole window.
    """
    lead, per_period = lead_bins(window), window.bins_per_period
    series = series.since_launch(window.first_decision_s)
    # Cut at the first decision of the window: nothing later may influence the choice.
    known_series = series.window(series.start_s, window.first_decision_s)
    model = forecaster(method, horizon_bins=per_period, lead_bins=lead)
    steps = lead + _bins_per_decision(window, at_once)
    return RollingArguments(known_series, model, origins.tolist(), steps)


def quantiles_at_levels(forecast: Forecast) -> FloatArray:
    """Return the forecast at each quantile of ``QUANTILE_LEVELS``, ``[levels, steps]``."""
    return interpolate_quantiles(np.asarray(forecast.levels), forecast.quantiles, QUANTILE_LEVELS)
