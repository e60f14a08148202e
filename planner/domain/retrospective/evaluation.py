"""Evaluate a past plan: replay the requests that came on the replicas that the plan requested.

The result also has the cheapest plan for the known traffic (oracle), for comparison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from forecasting.demand import SeriesKey
from planner.domain.outcome import Inputs
from planner.domain.planning.inputs import Load
from planner.domain.planning.planning import forecast_load, plan_load
from planner.domain.preparation import study_of
from planner.domain.progress import Progress, part
from planner.domain.replay.replay import BRIEF, replay_policy
from planner.domain.retrospective.drift import length_drift, requested_counts, speed_drifts
from planner.domain.retrospective.figures import (
    DemandError,
    ForecastBin,
    Hour,
    PlanEvaluation,
    RequestedPool,
)
from planner.domain.serialise import moment
from planner.domain.study import PolicyRun, Study
from planner.domain.traffic.forecasts import SeriesForecast
from planner.errors import Infeasible
from planner.inputs.live.replica_speed import ServedSpeed
from planner.optimizer.pools import pool_capacity
from planner.policies.builtin.forecast_plan import Planned as PlannedPolicy
from planner.policies.context import BuiltPolicy
from simulation.arrays import FloatArray, IntArray
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.schedule_follower import ScheduleFollower

PERFECT = "perfect"
ROUNDING = 1e-9  # relative tolerance
Forecast = Mapping[tuple[SeriesKey, float], ForecastBin]  # by series and start of the bin, epoch s


def evaluate_plan(
    inputs: Inputs,
    requested: Sequence[RequestedPool],
    forecast: Forecast,
    progress: Progress,
    *,
    served: Sequence[ServedSpeed] = (),
) -> PlanEvaluation:
    """Compare a plan with the traffic that came in the window of the scenario.

    ``requested`` are the replicas that the plan requested, ``forecast`` is the forecast that it was
    made for, and ``served`` has live measurements of the replicas' speed. The window must lie
    within the scenario's traffic. Raises ScenarioError if the scenario lacks a pool of the plan.
    """
    study = study_of(inputs, part(progress, 0.0, 0.3))
    window, hardware = study.window, study.hardware
    times_s, counts = requested_counts(hardware, requested, window.start_s, window.end_s)
    # The plan before started the first replicas, so they run at the start of the window.
    today = np.zeros(hardware.minimum.shape, np.int64)
    for pool_index, count in zip(hardware.model_region_gpu, counts[0], strict=True):
        today[pool_index] = count
    study = replace(study, hardware=replace(hardware, today=today))
    # A perfect forecast is the actual demand, in the form that plans use.
    perfect = forecast_load(study.plan_input, part(progress, 0.3, 0.4), method=PERFECT)
    # Replicas of the cheapest plan for the actual demand; None: there is none.
    needed, notes = _cheapest_fleet(study, perfect.load, part(progress, 0.4, 0.6))
    # The plan replayed on the actual traffic.
    run = _replay_counts(study, times_s, counts, part(progress, 0.6, 1.0))
    summary = run.summary
    begins_s = window.period_starts_s - window.start_s
    ready = _ready_at(times_s, counts, begins_s, hardware.startup_s)
    speed, speed_notes = speed_drifts(hardware, counts, served)
    hours = window.period_s / 3600
    evaluation = PlanEvaluation(
        begins=moment(window.start_s),
        ends=moment(window.end_s),
        demand=_forecast_errors(perfect.forecasts, forecast),
        attainment=dict(summary.slo_attainment),
        targets={tier.name: tier.attainment for tier in hardware.tiers},
        met=dict(summary.slo_met),
        cost_usd=summary.cost_usd,
        gpu_hours=summary.gpu_hours,
        replica_hours=float(ready.sum()) * hours,
        needed_replica_hours=None,
        needed_usd=None,
        planned_usd=_usd_per_hour(study, ready) * hours,
        short_hours=_short_periods(study, ready, perfect.load) * hours,
        lengths=length_drift(study.traffic, window, inputs.scenario.seed),
        speed=speed,
        hours=_period_rows(study, perfect.forecasts, forecast, ready, needed),
        notes=(*notes, *speed_notes),
    )
    if needed is None:
        return evaluation
    replica_hours, usd = float(needed.sum()) * hours, _usd_per_hour(study, needed) * hours
    return replace(evaluation, needed_replica_hours=replica_hours, needed_usd=usd)


def _cheapest_fleet(
    study: Study, load: Load, progress: Progress
) -> tuple[IntArray | None, tuple[str, ...]]:
    """Return (replicas of the cheapest plan for the demand ``load``, notes).

    Replicas are ``[periods, pools]``. If there is no plan, return None with a note that says why.
    """
    try:
        return study.counts_by_pool(plan_load(study.plan_input, load, progress).target), ()
    except Infeasible as problem:
        return None, (f"No fleet could have served this demand: {problem}",)


def _replay_counts(
    study: Study, times_s: FloatArray, counts: IntArray, progress: Progress
) -> PolicyRun:
    """Replay the window's requests on replicas ``counts [times, pools]``, requested at ``times_s``.

    Times are seconds from the start of the window.
    """
    policy = PlannedPolicy(name="lt-i", label="Active plan")
    rule = ScheduleFollower(FixedSchedule(times_s, counts), name=policy.key)
    built = BuiltPolicy(rule, study.fleet(counts[0]), range(counts.shape[1]))
    return replay_policy(
        study, policy, built, seed=study.settings.seed, progress=progress, options=BRIEF
    )


def _ready_at(
    times_s: FloatArray, counts: IntArray, starts_s: FloatArray, startup_s: float
) -> IntArray:
    """Return the replicas that serve at ``starts_s``, the starts of periods: ``[periods, pools]``.

    ``counts [times, pools]`` are requested from ``times_s`` on. A replica serves if it was
    requested throughout the ``startup_s`` before. Those of the first time serve from the start.
    """
    # By period: the index of the count in force one cold start before, and one past that at the
    # start. A pool's fewest replicas between the two serve.
    first = (np.searchsorted(times_s, starts_s - startup_s, side="right") - 1).clip(0)
    end = np.searchsorted(times_s, starts_s, side="right")
    return np.stack([counts[i:j].min(axis=0) for i, j in zip(first, end, strict=True)])


def _usd_per_hour(study: Study, counts: IntArray) -> float:
    """Return the dollars per hour of replicas ``counts [periods, pools]``, summed over periods."""
    hardware, window = study.hardware, study.window
    gpus = counts * [hardware.profiles[m, g].tp for m, _, g in hardware.model_region_gpu]
    total_usd = 0.0
    for start_s, gpus_of_pools in zip(window.period_starts_s, gpus, strict=True):
        usd = hardware.gpu_usd(start_s, window.period_s)  # [region, GPU column]
        usd_of_pools = np.array([usd[r, g] for _, r, g in hardware.model_region_gpu])
        total_usd += float((gpus_of_pools * usd_of_pools).sum())
    return total_usd


def _short_periods(study: Study, pool_counts: IntArray, load: Load) -> float:
    """Count the periods in which a model had less capacity than its peak demand in ``load``.

    ``pool_counts [periods, pools]`` are the replicas. Capacity and peak are sums over all regions.
    """
    hardware = study.hardware
    counts = np.zeros((len(pool_counts), *hardware.minimum.shape), np.int64)
    for pool, (m, r, g) in enumerate(hardware.model_region_gpu):
        counts[:, m, r, g] = pool_counts[:, pool]
    by_pool = pool_capacity(study.sizes.theta_tps, study.sizes.pool_tps, counts)
    by_region = np.apply_along_axis(hardware.capacity_of_region, 3, by_pool)
    capacity = by_region.sum(axis=2)  # [period, model]
    peak = load.tps.sum(axis=2).max(axis=2)  # the largest bin of each period
    is_short = (capacity < peak * (1 - ROUNDING)).any(axis=1)
    return float(is_short.sum())


def _forecast_errors(forecasts: Sequence[SeriesForecast], forecast: Forecast) -> DemandError:
    """Return the errors of a plan's stored forecast (``forecast``) over the bins that it covers.

    ``forecasts`` have the actual demand. Bins that were not observed are left out.
    """
    actual, mean, planned = _actual_and_forecast(forecasts, forecast)
    is_observed = ~np.isnan(actual)
    # Hours are the mean over series, so that more series do not add hours.
    bin_h = forecasts[0].bin_s / 3600 if forecasts else 0.0
    hours = float(is_observed.sum()) * bin_h / max(1, len(forecasts))
    is_known = is_observed & ~np.isnan(mean)
    actual, mean, planned = actual[is_known], mean[is_known], planned[is_known]
    total = float(actual.sum())
    if total <= 0:
        return DemandError(None, None, None, hours)
    return DemandError(
        wape=float(np.abs(actual - mean).sum()) / total,
        bias=float((mean - actual).sum()) / total,
        covered=float(np.minimum(actual, planned).sum()) / total,
        hours=hours,
    )


def _actual_and_forecast(
    forecasts: Sequence[SeriesForecast], stored: Forecast
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (actual, mean forecast, planned) demand in tokens/s, each ``[series, bins]``.

    ``forecasts`` have the actual demand, ``stored`` is the plan's forecast. NaN: the bin was not
    observed, or the plan has no forecast of it.
    """
    actual = np.array([forecast.actual / forecast.bin_s for forecast in forecasts])
    mean, planned = np.full(actual.shape, np.nan), np.full(actual.shape, np.nan)
    for s, series in enumerate(forecasts):
        for b in range(actual.shape[1]):
            forecast_bin = stored.get((series.key, series.start_s + b * series.bin_s))
            if forecast_bin is not None:
                mean[s, b], planned[s, b] = forecast_bin.mean, forecast_bin.planned
    return actual, mean, planned


def _period_rows(
    study: Study,
    forecasts: Sequence[SeriesForecast],
    forecast: Forecast,
    ready: IntArray,
    needed: IntArray | None,
) -> tuple[Hour, ...]:
    """Return a row per period: forecast and actual demand, replicas of the plan and needed ones.

    ``ready`` are the plan's replicas that serve, ``needed`` those of the cheapest plan (None: there
    is none), both ``[periods, pools]``.
    """
    window = study.window
    shape = len(window.period_starts_s), window.bins_per_period
    by_series = _actual_and_forecast(forecasts, forecast)  # of each: [series, bin]
    # Sums over all series, [period, bin].
    actual, mean, planned = [rates.sum(axis=0).reshape(shape) for rates in by_series]
    return tuple(
        Hour(
            moment(start),
            forecast_tps=_none_if_nan(mean[p].mean()),
            planned_tps=_none_if_nan(planned[p].max()),
            came_tps=_none_if_nan(actual[p].mean()),
            peak_tps=_none_if_nan(actual[p].max()),
            plan_replicas=int(ready[p].sum()),
            needed_replicas=None if needed is None else int(needed[p].sum()),
        )
        for p, start in enumerate(window.period_starts_s.tolist())
    )


def _none_if_nan(value: float) -> float | None:
    """Return ``value``, or None if it is NaN."""
    return None if np.isnan(value) else float(value)
