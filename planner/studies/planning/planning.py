"""The plan of a window: forecast what each period is told, solve E7, period by period (LT-I) or all
periods at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.optimizer import solve_window
from planner.optimizer.problem import FEASIBLE, OPTIMAL, ScalingPlan
from planner.scenario.settings import ALL
from planner.studies.planning.deferred import deferred_tps, flat_tps
from planner.studies.planning.inputs import Foreseen, Load, PlanInput, Planned
from planner.studies.planning.program import problem
from planner.studies.planning.solving import Periods, solve_periods
from planner.studies.progress import Progress, part
from planner.studies.traffic.forecasts import MEAN, SeriesForecast, forecast_window
from planner.studies.traffic.groups import (
    DEFERRABLE,
    INTERACTIVE,
    by_model_and_region,
    groups_of,
    interactive,
)
from planner.studies.traffic.window import DAY_S, Window
from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.policies.scheduled import Scheduled

CONTROL_S = Scheduled.interval_s  # how often a plan in force looks at the clock


def plan_window(
    inputs: PlanInput, progress: Progress, *, method: str | None = None, load_factor: float = 1.0
) -> Planned:
    """Forecast with ``method`` (the scenario's where None) and plan every period for
    ``load_factor`` times that, ``[l, r, g]`` instances from ``current`` on; raises Infeasible with
    the conflict in words."""
    foreseen = forecast_load(inputs, part(progress, 0.0, 0.7), method=method)
    load = foreseen.load.times(load_factor)
    plan = plan_load(inputs, load, part(progress, 0.7, 1.0))
    return Planned(plan, foreseen.forecasts, load, foreseen.quantiles)


def forecast_load(inputs: PlanInput, progress: Progress, *, method: str | None = None) -> Foreseen:
    """What each period is to be planned for: the scenario's forecast at its quantiles, or the mean
    of ``method``."""
    traffic, window, forecast = inputs.traffic, inputs.window, inputs.settings.forecast
    all_at_once = inputs.settings.periods == ALL
    groups = groups_of(inputs.hardware, apart=inputs.settings.tiers_apart)
    chosen = () if method else inputs.planned_quantiles(part(progress, 0.0, 0.4))
    heights = [quantile.height for quantile in chosen] or [MEAN] * len(groups)
    forecasts = forecast_window(
        list(zip(groups, heights, strict=True)),
        traffic,
        window,
        method=method or forecast.method,
        progress=part(progress, 0.4 if chosen else 0.0, 1.0),
        at_once=all_at_once,
    )
    return Foreseen(load_of(inputs, forecasts), forecasts, chosen)


def load_of(inputs: PlanInput, forecasts: Sequence[SeriesForecast]) -> Load:
    """What of ``forecasts`` is planned for, with room for what may wait beside it."""
    traffic, window, forecast = inputs.traffic, inputs.window, inputs.settings.forecast
    all_at_once = inputs.settings.periods == ALL
    names = list(dict.fromkeys(series.key.tier for series in forecasts)) or [INTERACTIVE]
    shape = (len(window.period_starts_s), *inputs.current.shape[:2], window.bins_per_period)
    tiers, expected = np.zeros((len(names) + 1, *shape)), np.zeros(shape)
    for series in forecasts:
        m, r = traffic.models.index(series.key.model), traffic.regions.index(series.key.region)
        rate = series.planned.reshape(shape[0], shape[3]) / window.bin_s
        tiers[names.index(series.key.tier), :, m, r] = rate
        expected[:, m, r] += series.mean.reshape(shape[0], shape[3]) / window.bin_s
    if forecast.niw_buffer is None:
        tiers[-1] = deferred_tps(inputs, tiers[:-1].sum(axis=0), at_once=all_at_once)
    else:
        niw = _deferrable_tps(inputs)
        if all_at_once:  # of what is known before the first period
            niw = np.broadcast_to(niw[:1], niw.shape)
        tiers[-1] = forecast.niw_buffer * niw[..., None]
    load = Load(tiers.sum(axis=0), expected_tps=expected)
    if len(names) > 1:
        load = replace(load, tiers=(*names, DEFERRABLE), tier_tps=tiers)
    return load


def plan_load(inputs: PlanInput, load: Load, progress: Progress) -> ScalingPlan:
    """Plan every period for ``load``; raises Infeasible with the conflict."""
    return solve_periods(Periods.of(inputs, load), progress)


def flat_at_peak(inputs: PlanInput) -> tuple[IntArray, str]:
    """The cheapest fleet ``[l, r, g]`` that covers every region's own peak of the whole window.

    Peaks that do not coincide may not fit together where every period by itself does: then it is
    what fits, and the sentence beside it says so ("" otherwise).

    It is sized in hindsight, from the demand that came (ahead of the trace: from the last window
    of the same length), so it is the flat fleet that a planner with perfect foresight of the peak
    would buy.
    """
    window = inputs.window
    end_s = window.start_s if window.ahead else window.end_s
    start_s = max(end_s - window.duration_s, inputs.traffic.demand.start_s)
    target, conflict = _flat(inputs, start_s, end_s, times=float(window.grown.max()))
    misfit = f"A flat fleet at the peak of the window does not fit. {conflict}" if conflict else ""
    return target, misfit


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """The flat fleet that runs at the window's start where nobody says what does: the cheapest
    that covers every region's own peak of the time before, a day or as long as the window."""

    counts: IntArray  # [l, r, g]
    seconds: float  # before the window's start that it was sized on; 0: nothing is known of them


def flat_before(inputs: PlanInput) -> Before:
    """As far back as the traffic goes; where that is nowhere the least fleet there may be. Of
    traffic that is only described a whole week, since the day before may be a Sunday."""
    window, demand = inputs.window, inputs.traffic.demand
    least_s = 7 * DAY_S if inputs.traffic.all_launched else DAY_S
    start_s = max(window.start_s - max(window.duration_s, least_s), demand.start_s)
    requests = demand.requests[:, demand.inside(start_s, window.start_s)]
    seconds = window.start_s - start_s if np.any(~np.isnan(requests)) else 0.0
    return Before(_flat(inputs, start_s, window.start_s)[0], max(0.0, seconds))


def _flat(
    inputs: PlanInput, start_s: float, end_s: float, times: float = 1.0
) -> tuple[IntArray, str]:
    """The cheapest fleet for so many ``times`` the peaks of that stretch, and what is in the way of
    all of it."""
    hardware, traffic, window = inputs.hardware, inputs.traffic, inputs.window
    tps = np.zeros((len(traffic.models), len(traffic.regions), 1))
    buffer = inputs.settings.forecast.niw_buffer
    for tiers, weight in ((interactive(hardware), 1.0), (_deferrable(inputs), buffer)):
        for (m, r), series in by_model_and_region(traffic, tiers):
            rate = series.window(start_s, end_s).rate()
            if weight is not None and np.any(~np.isnan(rate)):
                tps[m, r, 0] += weight * float(np.nanmax(rate))
    if buffer is None:
        tps = np.maximum(tps, flat_tps(inputs, start_s, end_s)[..., None])
    nothing = np.zeros(hardware.minimum.shape, np.int64)
    flat = problem(replace(inputs, current=nothing, at_load=False), tps * times, window.duration_s)
    for epsilon in dict.fromkeys((1.0, inputs.settings.epsilon)):
        answer = solve_window(
            replace(flat, epsilon=epsilon),
            solver=inputs.settings.solver,
            time_limit_s=inputs.settings.time_limit_s,
        )
        if answer.status in (OPTIMAL, FEASIBLE):
            return answer.target, ""
    return answer.target, answer.conflict


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """When to ask for what."""

    times_s: FloatArray  # [t] from the window's start
    targets: IntArray  # [t, l, r, g]
    # [t, l, r, g] of the targets, lent out: those that neither the period that runs nor one already
    # asked for serves with. None where nothing may be lent.
    lent: IntArray | None
    shares: FloatArray | None  # [t, l, r, r] of the period that runs (ScalingPlan.shares)


def schedule(plan: ScalingPlan, window: Window) -> Schedule:
    """Each period's instances are asked for ``lead_s`` before it begins, so that they are up then,
    and held until it ends: at any time the largest target among the period that runs and those
    already asked for. Requests fall on a control instant, never before what they rest on is known.
    """
    times, in_force = _in_force(window)
    targets = _most(plan.target, in_force)
    runs = np.searchsorted(window.period_starts_s - window.start_s, times, side="right") - 1
    shares = None if plan.shares is None else plan.shares[runs]
    if plan.lent is None:
        return Schedule(times, targets, None, shares)
    return Schedule(times, targets, targets - _most(plan.target - plan.lent, in_force), shares)


def asked_s(window: Window) -> FloatArray:
    """When each period's instances are asked for, seconds from the window's start: ``lead_s``
    before it begins, on a control instant, never before what they rest on is known."""
    starts = window.period_starts_s - window.start_s
    on_control = np.floor((starts - window.lead_s) / CONTROL_S + 1e-9) * CONTROL_S
    known = window.origins_s - window.start_s
    return np.asarray(np.maximum(on_control, known).clip(0.0, starts), np.float64)


def _in_force(window: Window) -> tuple[FloatArray, BoolArray]:
    """Times at which what is asked for changes, and the periods it is asked for, ``[t, p]``."""
    starts, begins = window.period_starts_s - window.start_s, asked_s(window)
    times = np.unique(np.concatenate([starts, begins]))
    ends = np.append(starts[1:], np.inf)
    return times, (begins <= times[:, None]) & (times[:, None] < ends)


def _most(counts: IntArray, in_force: BoolArray) -> IntArray:
    most: IntArray = np.where(in_force[..., None, None, None], counts, 0).max(axis=1)
    return most


def _deferrable(inputs: PlanInput) -> set[str]:
    return {tier.name for tier in inputs.hardware.tiers if tier.deferrable}


def _deferrable_tps(inputs: PlanInput) -> FloatArray:
    """NIW input tokens/s over the period before each decision, shape ``[p, l, r]`` (E6)."""
    traffic, window = inputs.traffic, inputs.window
    tps = np.zeros((len(window.period_starts_s), len(traffic.models), len(traffic.regions)))
    for (m, r), series in by_model_and_region(traffic, _deferrable(inputs), DEFERRABLE):
        for p, origin in enumerate(window.origins_s):
            rate = series.window(origin - window.period_s, origin).rate()
            if np.any(~np.isnan(rate)):
                tps[p, m, r] = np.nanmean(rate)
    grown = window.grown.reshape(len(tps), -1).mean(axis=1)
    return np.asarray(tps * grown[:, None, None], np.float64)
