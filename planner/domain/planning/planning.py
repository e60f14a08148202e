"""Plan a window: forecast the load, then solve the program (methods.md E7).

It is solved period by period (as the policy LT-I does) or for all periods at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forecasting.backtest import rolling_forecasts
from planner.domain.planning.deferred_work import (
    deferred_tps,
    level_deferred_tps,
    mean_rate,
    shifted_work,
    tps_of,
)
from planner.domain.planning.inputs import ForecastLoad, Load, PlanInput, PlannedWindow
from planner.domain.planning.period_solver import Periods, solve_periods
from planner.domain.planning.program import problem
from planner.domain.progress import Progress, part
from planner.domain.traffic.forecast_percentile import Quantiles
from planner.domain.traffic.forecasts import (
    MEAN,
    SeriesForecast,
    forecast_window,
    window_forecast_arguments,
)
from planner.domain.traffic.groups import (
    DEFERRABLE,
    INTERACTIVE,
    by_model_and_region,
    deferrable,
    groups_of,
    interactive,
    series_of,
)
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import DAY_S, Window
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.settings import ALL, CHEAPEST, PlanSettings
from planner.optimizer import solve_window
from planner.optimizer.problem import FEASIBLE, OPTIMAL, ScalingPlan, Shift
from planner.second_process import begin
from simulation.arrays import Array, BoolArray, FloatArray, IntArray
from simulation.policies.schedule_follower import ScheduleFollower

CONTROL_S = ScheduleFollower.interval_s  # interval at which an active plan is applied


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleTable:
    """A plan as arrays with a row per step; a step lasts until the next one starts."""

    times_s: FloatArray  # [step] from the window's start
    targets: IntArray  # [step, model, region, GPU column] replicas
    lent: IntArray | None  # the same: those of ``targets`` that are lent as spot
    # [step, model, region, region] shares of each home region's tokens by serving region
    shares: FloatArray | None
    # [step, model, region] ``Actions.release_tokens``
    release: FloatArray | None


def plan_window(
    inputs: PlanInput, progress: Progress, *, method: str | None = None
) -> PlannedWindow:
    """Forecast the demand of the window, and plan every period.

    ``method`` replaces the scenario's forecast method; None keeps it. The plan starts from the
    fleet ``inputs.current``. Raise Infeasible, with the conflict in words, if there is no plan.
    """
    forecast = forecast_load(inputs, part(progress, 0.0, 0.7), method=method)
    plan = plan_load(inputs, forecast.load, part(progress, 0.7, 1.0))
    return PlannedWindow(plan, forecast.forecasts, forecast.load, forecast.quantiles)


def begin_forecasts(
    settings: PlanSettings, hardware: Hardware, traffic: Traffic, window: Window
) -> None:
    """Begin the forecasts of ``forecast_load`` in a second process, if there is one."""
    at_once = settings.objective.periods == ALL
    apart = settings.plans_tiers_separately
    Quantiles(hardware, traffic, window, settings.forecast, apart).begin_forecasts(at_once=at_once)
    for group in groups_of(hardware, one_per_tier=apart):
        for _, demand in series_of(traffic, group):
            call = window_forecast_arguments(
                demand, window, settings.forecast.method, at_once=at_once
            )
            begin(rolling_forecasts, *call)


def forecast_load(
    inputs: PlanInput, progress: Progress, *, method: str | None = None
) -> ForecastLoad:
    """Return the forecasts, and the demand to plan for in each period.

    The demand is the scenario's forecast at the planned percentiles. If ``method`` names another
    forecast method, it is the mean of that forecast.
    """
    traffic, window, forecast = inputs.traffic, inputs.window, inputs.settings.forecast
    all_at_once = inputs.settings.objective.periods == ALL
    groups = groups_of(inputs.hardware, one_per_tier=inputs.settings.plans_tiers_separately)
    chosen = () if method else inputs.planned_quantiles(part(progress, 0.0, 0.4))
    planning_levels = [quantile.planning_level for quantile in chosen] or [MEAN] * len(groups)
    forecasts = forecast_window(
        list(zip(groups, planning_levels, strict=True)),
        traffic,
        window,
        method=method or forecast.method,
        progress=part(progress, 0.4 if chosen else 0.0, 1.0),
        at_once=all_at_once,
    )
    return ForecastLoad(load_of(inputs, forecasts), forecasts, chosen)


def load_of(inputs: PlanInput, forecasts: Sequence[SeriesForecast]) -> Load:
    """Return the demand to plan for: that of ``forecasts`` (``planned``), plus deferrable load."""
    names = tuple(dict.fromkeys(series.key.tier for series in forecasts)) or (INTERACTIVE,)
    tier_tps, expected_tps = _interactive_tps(inputs, names, forecasts)
    deferrable_tps, shift = _deferrable_load(inputs, tier_tps.sum(axis=0))
    tier_tps = np.concatenate([tier_tps, deferrable_tps[None]])
    return Load.of_tiers((*names, DEFERRABLE), tier_tps, expected_tps, shift)


def _interactive_tps(
    inputs: PlanInput, names: Sequence[str], forecasts: Sequence[SeriesForecast]
) -> tuple[FloatArray, FloatArray]:
    """Return the tokens/s to plan for by group of tiers (``names``), and the mean forecast of all.

    The first is ``[group, period, model, region, bin]``, the second is its sum in shape, without
    the groups.
    """
    window, bins = inputs.window, inputs.window.bins_per_period
    models, regions, _ = inputs.current.shape
    expected_tps = np.zeros((len(window.period_starts_s), models, regions, bins))
    tier_tps = np.zeros((len(names), *expected_tps.shape))
    for series in forecasts:
        tier = names.index(series.key.tier)
        model, region = inputs.traffic.model_and_region(series.key)
        tier_tps[tier, :, model, region] = series.planned.reshape(-1, bins) / window.bin_s
        expected_tps[:, model, region] += series.mean.reshape(-1, bins) / window.bin_s
    return tier_tps, expected_tps


def _deferrable_load(
    inputs: PlanInput, interactive_tps: FloatArray
) -> tuple[FloatArray, Shift | None]:
    """Return the deferrable load to plan for, and its shift: when and where the work is done.

    The load and ``interactive_tps`` are tokens/s, ``[period, model, region, bin]``. The load is the
    mean deferrable rate times the setting ``niw_buffer``. Without that setting, work is done at the
    cheapest time if the objective says so (only then is the shift not None), else before it is
    urgent.
    """
    buffer, objective = inputs.settings.forecast.niw_buffer, inputs.settings.objective
    all_at_once = objective.periods == ALL
    if buffer is not None:
        rates = _deferrable_tps(inputs)
        if all_at_once:  # only the data before the first period is known
            rates = rates[:1]
        return np.broadcast_to(buffer * rates[..., None], interactive_tps.shape), None
    shift = shifted_work(inputs, interactive_tps) if objective.defer == CHEAPEST else None
    if shift is not None:
        return tps_of(shift.tokens, interactive_tps, inputs.window.bin_s), shift
    return deferred_tps(inputs, interactive_tps, at_once=all_at_once), None


def plan_load(inputs: PlanInput, load: Load, progress: Progress) -> ScalingPlan:
    """Plan every period for the demand ``load``.

    Raise Infeasible, with the conflict in words, if there is no plan.
    """
    return solve_periods(Periods.of(inputs, load), progress)


def static_at_peak(inputs: PlanInput) -> tuple[IntArray, str]:
    """Return (fleet, misfit): the cheapest static fleet that covers every region's peak.

    The fleet is ``[model, region, GPU column]``. It is an oracle baseline, sized from the actual
    demand of the window. For a window ahead of the trace, it is sized from the time of equal length
    before, with growth. If all peaks together exceed the limits, the fleet covers what fits, and
    ``misfit`` is a sentence on that; else "".
    """
    window = inputs.window
    end_s = window.start_s if window.after_traffic else window.end_s
    start_s = max(end_s - window.duration_s, inputs.traffic.demand.start_s)
    target, conflict = static_fleet_for(
        inputs, _peaks(inputs, start_s, end_s) * window.growth_factors.max()
    )
    misfit = f"A flat fleet at the peak of the window does not fit. {conflict}" if conflict else ""
    return target, misfit


@dataclass(frozen=True, slots=True, eq=False)
class StaticBefore:
    """The static fleet at the window's start, if the scenario does not state the current fleet.

    It is the cheapest that covers every region's own peak of the time before. That time is as long
    as the window, and at least a day.
    """

    counts: IntArray  # [model, region, GPU column]
    seconds: float  # length of the time that it was sized on; 0: nothing was observed


def static_before(inputs: PlanInput) -> StaticBefore:
    """Return the static fleet sized on the time before the window.

    Without traffic before the window, it is the smallest fleet that the limits permit.
    """
    start_s, end_s = _history_span(inputs)
    demand = inputs.traffic.demand
    requests = demand.requests[:, demand.inside(start_s, end_s)]
    seconds = end_s - start_s if np.any(~np.isnan(requests)) else 0.0
    return StaticBefore(static_fleet_for(inputs, peaks_before(inputs))[0], max(0.0, seconds))


def peaks_before(inputs: PlanInput) -> FloatArray:
    """Return the peak demand before the window, in input tokens/s, ``[model, region, 1]``."""
    return _peaks(inputs, *_history_span(inputs))


def _history_span(inputs: PlanInput) -> tuple[float, float]:
    """Return (start, end), in epoch s, of the time before the window that sizes a static fleet."""
    window, demand = inputs.window, inputs.traffic.demand
    # Traffic that is only described uses a whole week, because the day before may be a Sunday.
    least_s = 7 * DAY_S if inputs.traffic.all_launched else DAY_S
    start_s = max(window.start_s - max(window.duration_s, least_s), demand.start_s)
    return start_s, window.start_s


def _peaks(inputs: PlanInput, start_s: float, end_s: float) -> FloatArray:
    """Return the peak input tokens/s in ``[start_s, end_s)`` (epoch s), ``[model, region, 1]``.

    With the setting ``niw_buffer``, it is the interactive peak plus that factor times the
    deferrable peak. Without it, it is the capacity that serves interactive demand at once, and
    deferrable demand before it is urgent.
    """
    hardware, buffer = inputs.hardware, inputs.settings.forecast.niw_buffer
    tps = np.zeros(inputs.current.shape[:2])
    weighted_tiers = [(interactive(hardware), 1.0)]
    if buffer is not None:
        weighted_tiers.append((deferrable(hardware), buffer))
    for tiers, weight in weighted_tiers:
        for place, series in by_model_and_region(inputs.traffic, tiers):
            rate = series.window(start_s, end_s).rate()
            if not np.isnan(rate).all():
                tps[place] += weight * float(np.nanmax(rate))
    if buffer is None:
        tps = np.maximum(tps, level_deferred_tps(inputs, start_s, end_s))
    return tps[..., None]


def static_fleet_for(inputs: PlanInput, tps: FloatArray) -> tuple[IntArray, str]:
    """Return (fleet, conflict): the cheapest fleet for peak demand ``tps [model, region, 1]``.

    The fleet is ``[model, region, GPU column]``, the demand is in input tokens/s. If not all peaks
    fit, ``conflict`` is a sentence on that; else "".
    """
    # Replicas draw a constant power of their GPU type, because their load is not known yet.
    no_replicas = np.zeros(inputs.hardware.minimum.shape, np.int64)
    from_empty = replace(inputs, current=no_replicas, at_load=False)
    flat = problem(from_empty, tps, inputs.window.duration_s, inputs.window.start_s)
    # First let every region serve its own peak. If that does not fit, use the scenario's share.
    for epsilon in dict.fromkeys((1.0, inputs.settings.objective.epsilon)):
        answer = solve_window(
            replace(flat, epsilon=epsilon),
            solver=inputs.settings.objective.solver,
            time_limit_s=inputs.settings.objective.time_limit_s,
        )
        if answer.status in (OPTIMAL, FEASIBLE):
            return answer.target, ""
    return answer.target, answer.conflict


def schedule_of(plan: ScalingPlan, window: Window) -> ScheduleTable:
    """Return the schedule of a plan: the replicas to have at each time of the window.

    The replicas of a period are requested ``lead_s`` before it begins, and stay until it ends. At
    any time, the target is the largest count of the current period and of later ones that are
    already requested. The schedule also has the lent replicas, the shares of requests by region and
    the tokens of deferrable work to release, each None if the plan has none.
    """
    times, active = _active_targets(window)
    targets = _largest_active(plan.target, active)
    starts = window.period_starts_s - window.start_s
    period_at = np.searchsorted(starts, times, side="right") - 1  # [steps] the current period
    shares = None if plan.shares is None else plan.shares[period_at]
    release = None if plan.shift is None else np.cumsum(plan.shift.tokens, axis=0)[period_at]
    lent = None
    if plan.lent is not None:
        lent = targets - _largest_active(plan.target - plan.lent, active)
    return ScheduleTable(times, targets, lent, shares, release)


def counts_over_time(counts: Array, window: Window) -> tuple[FloatArray, Array]:
    """Return (times, targets): the replicas to have over time, from ``counts [period, ...]``.

    Times are seconds from the window's start, ``[step]``. Targets are ``[step, ...]``, with the
    other axes of ``counts``, such as model, region and GPU column. ``schedule_of`` describes the
    rule.
    """
    times, active = _active_targets(window)
    return times, _largest_active(counts, active)


def requests_over_time(counts: IntArray, window: Window) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return (times, period starts, targets): when to request which replicas.

    ``counts [period, model, region, GPU column]`` are those of the plan. Each time ``[step]`` has
    the start of the latest period that is requested then, and the replicas to have, ``[step, model,
    region, GPU column]``. Times are epoch seconds. Replicas that the simulation has at the window's
    start are requested ``lead_s`` before it.
    """
    times, requested = counts_over_time(counts, window)
    # Number of the last period that is requested by each time.
    latest = np.searchsorted(decision_times_s(window), times, side="right") - 1
    request_times = window.start_s + times
    # Whole control intervals, as many as the lead time needs.
    request_times[0] -= np.ceil(window.lead_s / CONTROL_S - 1e-9) * CONTROL_S
    return request_times, window.period_starts_s[latest], requested


def decision_times_s(window: Window) -> FloatArray:
    """Return when the replicas of each period are requested, ``[period]``.

    Times are seconds from the window's start. They are ``lead_s`` before the period begins, rounded
    down to a multiple of ``CONTROL_S``, but not before the period's decision.
    """
    starts = window.period_starts_s - window.start_s
    on_control = np.floor((starts - window.lead_s) / CONTROL_S + 1e-9) * CONTROL_S
    known = window.origins_s - window.start_s
    return np.asarray(np.maximum(on_control, known).clip(0.0, starts), np.float64)


def _active_targets(window: Window) -> tuple[FloatArray, BoolArray]:
    """Return (times, active): when targets change, and the periods whose replicas are needed then.

    Times ``[step]`` are seconds from the window's start. ``active [step, period]`` is True from the
    request for a period's replicas until the period ends.
    """
    starts = window.period_starts_s - window.start_s  # [period]
    ends = np.append(starts[1:], np.inf)
    requested = decision_times_s(window)  # [period]
    times = np.unique(np.concatenate([starts, requested]))
    is_requested = requested <= times[:, None]
    has_ended = ends <= times[:, None]
    return times, is_requested & ~has_ended


def _largest_active(values: Array, active: BoolArray) -> Array:
    """Return the largest of ``values [period, ...]`` over the active periods, ``[step, ...]``.

    ``active [step, period]`` says which periods count at each step.
    """
    # One axis of length 1 for each other axis of ``values``, so that both broadcast.
    active = active.reshape(*active.shape, *[1] * (values.ndim - 1))
    return np.asarray(np.where(active, values, 0).max(axis=1))


def _deferrable_tps(inputs: PlanInput) -> FloatArray:
    """Return the deferrable input tokens/s of each period, ``[period, model, region]``.

    A period is planned for the mean rate in the span before its decision, as long as the period,
    times the expected growth.
    """
    traffic, window = inputs.traffic, inputs.window
    tps = np.zeros((len(window.period_starts_s), len(traffic.models), len(traffic.regions)))
    for (m, r), series in by_model_and_region(traffic, deferrable(inputs.hardware), DEFERRABLE):
        for p, origin in enumerate(window.origins_s):
            tps[p, m, r] = mean_rate(series, origin - window.period_s, origin)
    growth_of_period = window.growth_factors.reshape(len(tps), -1).mean(axis=1)
    return np.asarray(tps * growth_of_period[:, None, None], np.float64)
