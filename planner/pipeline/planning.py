"""The rolling plan: forecast each period's load from what is known, solve E7, move on (LT-I)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forecasting.backtest import coverage, mase, peak_wape, rolling_forecasts, wape
from forecasting.demand import INPUT_TOKENS, DemandSeries, SeriesKey
from forecasting.forecast import Forecast
from forecasting.selection import forecaster
from planner.errors import Infeasible
from planner.optimizer import plan_sequence, solve_window
from planner.optimizer.problem import (
    FEASIBLE,
    OPTIMAL,
    PlanningProblem,
    ScalingPlan,
    WindowPlan,
)
from planner.pipeline.progress import Progress, part
from planner.pipeline.sizing import Sizes
from planner.pipeline.traffic import Traffic
from planner.pipeline.window import Window
from planner.scenario.build import Hardware
from planner.scenario.schema import Scenario

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
INTERACTIVE, DEFERRABLE = "interactive", "deferrable"  # tiers of a model and region, summed
QUANTILES = (0.1, 0.9)


@dataclass(frozen=True, slots=True, eq=False)
class SeriesForecast:
    """One model's and region's interactive input tokens, forecast for every period of the window.

    Arrays are amounts per bin, shape ``[bins of the window]``; ``actual`` is NaN ahead of the
    trace and in gaps.
    """

    key: SeriesKey
    method: str
    order: str
    fit_seconds: float
    start_s: float
    bin_s: float
    actual: FloatArray
    mean: FloatArray
    planned: FloatArray  # the mean, or the scenario's quantile
    low: FloatArray  # 10%
    high: FloatArray  # 90%
    errors: dict[str, float | None]  # wape, peak_wape, mase, coverage80 over the window


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A rolling plan and the forecasts it stands on."""

    plan: ScalingPlan
    forecasts: tuple[SeriesForecast, ...]


def interactive(hardware: Hardware) -> set[str]:
    return {tier.name for tier in hardware.tiers if not tier.deferrable}


def forecast_window(
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    *,
    method: str,
    quantile: float | None,
    progress: Progress,
) -> tuple[SeriesForecast, ...]:
    """Forecast every model x region that has interactive demand, period by period.

    Each period uses only bins before its decision (``Window.origins_s``); "perfect" alone is told
    the truth.
    """
    series = _by_model_and_region(traffic, interactive(hardware))
    done = []
    for i, (_, one) in enumerate(series):
        progress(i / len(series), f"Forecasting {one.key.model} in {one.key.region}")
        done.append(_forecast_series(one, window, method, quantile))
    return tuple(done)


def _forecast_series(
    series: DemandSeries, window: Window, method: str, quantile: float | None
) -> SeriesForecast:
    per_period, bin_s = window.bins_per_period, window.bin_s
    bins = round(window.duration_s / bin_s)
    model = forecaster(method, horizon_bins=per_period, truth=series)
    if window.ahead:
        forecasts = rolling_forecasts(series, model, [window.start_s], bins)
        pieces = [(forecasts[0], 0, bins)]
    else:
        lead = round((window.start_s - window.origins_s[0]) / bin_s)
        origins = window.origins_s.tolist()
        forecasts = rolling_forecasts(series, model, origins, lead + per_period)
        pieces = [(forecast, lead, lead + per_period) for forecast in forecasts]

    def joined(of: str | float) -> FloatArray:
        values = [
            (piece.mean if of == "mean" else piece.quantile(float(of)))[first:last]
            for piece, first, last in pieces
        ]
        return np.concatenate(values)

    actual = np.full(bins, np.nan)
    seen = series.window(window.start_s, window.end_s)
    offset = round((seen.start_s - window.start_s) / bin_s) if seen.bins else 0
    actual[offset : offset + seen.bins] = seen.values
    mean, low, high = joined("mean"), joined(QUANTILES[0]), joined(QUANTILES[1])
    first: Forecast = forecasts[0]
    return SeriesForecast(
        key=series.key,
        method=first.method,
        order=first.order,
        fit_seconds=first.fit_seconds,
        start_s=window.start_s,
        bin_s=bin_s,
        actual=actual,
        mean=mean,
        planned=mean if quantile is None else joined(quantile),
        low=low,
        high=high,
        errors=_errors(series, window, actual, mean, low, high),
    )


def _errors(
    series: DemandSeries,
    window: Window,
    actual: FloatArray,
    mean: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> dict[str, float | None]:
    """Errors of what was forecast period by period; None where nothing was observed."""
    rows = (-1, window.bins_per_period)
    history = series.values[: round((window.start_s - series.start_s) / window.bin_s)]
    a, m = actual.reshape(rows), mean.reshape(rows)
    figures = {
        "wape": wape(a, m),
        "peak_wape": peak_wape(a, m),
        "mase": mase(a, m, history),
        "coverage80": coverage(actual, low, high),
    }
    return {name: float(v) if np.isfinite(v) else None for name, v in figures.items()}


def plan_window(
    scenario: Scenario,
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    sizes: Sizes,
    *,
    current: IntArray,
    progress: Progress,
    method: str | None = None,
) -> Planned:
    """Forecast with ``method`` (the scenario's where None) and plan every period, ``[l, r, g]``
    instances from ``current`` on; raises Infeasible with the conflict in words."""
    forecasts = forecast_window(
        hardware,
        traffic,
        window,
        method=method or scenario.forecast.method,
        quantile=None if method else scenario.forecast.quantile,
        progress=part(progress, 0.0, 0.8),
    )
    load = np.zeros((len(window.period_starts_s), *current.shape[:2], window.bins_per_period))
    for one in forecasts:
        m, r = traffic.models.index(one.key.model), traffic.regions.index(one.key.region)
        load[:, m, r] = one.planned.reshape(load.shape[0], load.shape[3]) / window.bin_s
    load += scenario.forecast.niw_buffer * _deferrable_tps(hardware, traffic, window)[..., None]
    problems = [problem(scenario, hardware, sizes, current, tps) for tps in load]
    objective = scenario.objective
    plan = plan_sequence(
        problems,
        period_start_s=window.period_starts_s,
        period_s=window.period_s,
        solver=objective.solver,
        gap=objective.gap,
        time_limit_s=objective.time_limit_s,
        progress=lambda done, total: progress(
            0.8 + 0.2 * done / total, f"Planning period {min(done + 1, total)} of {total}"
        ),
    )
    for start, answer in zip(plan.period_start_s, plan.windows, strict=True):
        _require(answer, f"the period from {np.datetime64(round(start), 's')} UTC")
    return Planned(plan, forecasts)


def flat_at_peak(
    scenario: Scenario, hardware: Hardware, traffic: Traffic, window: Window, sizes: Sizes
) -> IntArray:
    """The cheapest fleet ``[l, r, g]`` that covers every region's own peak of the whole window.

    It is sized in hindsight, from the demand that came (ahead of the trace: from the last window
    of the same length), so it is the flat fleet that a planner with perfect foresight of the peak
    would buy.
    """
    end_s = window.start_s if window.ahead else window.end_s
    start_s = max(end_s - window.duration_s, traffic.demand.start_s)
    tps = np.zeros((len(traffic.models), len(traffic.regions), 1))
    for tiers, weight in (
        (interactive(hardware), 1.0),
        ({t.name for t in hardware.tiers if t.deferrable}, scenario.forecast.niw_buffer),
    ):
        for (m, r), series in _by_model_and_region(traffic, tiers):
            rate = series.window(start_s, end_s).rate()
            if np.any(~np.isnan(rate)):
                tps[m, r, 0] += weight * float(np.nanmax(rate))
    nothing = np.zeros(hardware.minimum.shape, np.int64)
    for epsilon in dict.fromkeys((1.0, scenario.objective.epsilon)):
        wanted = problem(scenario, hardware, sizes, nothing, tps, epsilon=epsilon)
        answer = solve_window(
            wanted, solver=scenario.objective.solver, time_limit_s=scenario.objective.time_limit_s
        )
        if answer.status in (OPTIMAL, FEASIBLE):
            break
    _require(answer, "a flat fleet at the peak of the window")
    return answer.target


def problem(
    scenario: Scenario,
    hardware: Hardware,
    sizes: Sizes,
    current: IntArray,
    demand_tps: FloatArray,
    *,
    epsilon: float | None = None,
) -> PlanningProblem:
    """E7 for one period; ``demand_tps`` has shape ``[l, r, w]``.

    The start cost sigma is the price of the GPU time an instance burns before it serves (section
    5: price times start-up time).
    """
    tp = np.ones((len(hardware.models), len(hardware.gpus)), np.int64)
    for at, profile in hardware.profiles.items():
        tp[at] = profile.tp
    usd_per_hour = tp[:, None, :] * hardware.usd_per_gpu_hour[None]
    return PlanningProblem(
        models=tuple(model.name for model in hardware.models),
        regions=tuple(region.name for region in hardware.regions),
        gpus=tuple(gpu.name for gpu in hardware.gpus),
        current=current,
        theta_tps=sizes.theta_tps,
        usd_per_hour=usd_per_hour,
        start_usd=usd_per_hour * hardware.startup_s / 3600,
        gpus_per_instance=tp,
        demand_tps=demand_tps,
        capacity_gpus=hardware.capacity_gpus,
        minimum=np.where(sizes.theta_tps[:, None, :] > 0, hardware.minimum, 0),
        maximum=hardware.maximum,
        epsilon=scenario.objective.epsilon if epsilon is None else epsilon,
    )


def schedule(plan: ScalingPlan, window: Window) -> tuple[FloatArray, IntArray]:
    """When to ask for what: times (seconds from the window's start) and targets ``[t, l, r, g]``.

    Instances a period needs more are asked for at its decision, so that they are up when it
    begins; those it needs less are let go when it begins, not while the one before still needs
    them.
    """
    targets = plan.target
    starts = plan.period_start_s - window.start_s
    times, steps = [0.0], [targets[0]]
    for p in range(1, len(targets)):
        asked = max(float(starts[p] - window.lead_s), float(starts[p - 1]))
        if asked < starts[p]:
            times.append(asked)
            steps.append(np.maximum(targets[p - 1], targets[p]))
        times.append(float(starts[p]))
        steps.append(targets[p])
    return np.array(times), np.stack(steps)


def _deferrable_tps(hardware: Hardware, traffic: Traffic, window: Window) -> FloatArray:
    """NIW input tokens/s over the period before each decision, shape ``[p, l, r]`` (E6)."""
    tps = np.zeros((len(window.period_starts_s), len(traffic.models), len(traffic.regions)))
    deferrable = {tier.name for tier in hardware.tiers if tier.deferrable}
    for (m, r), series in _by_model_and_region(traffic, deferrable, DEFERRABLE):
        for p, origin in enumerate(window.origins_s):
            rate = series.window(origin - window.period_s, origin).rate()
            if np.any(~np.isnan(rate)):
                tps[p, m, r] = np.nanmean(rate)
    return tps


def _by_model_and_region(
    traffic: Traffic, tiers: set[str], name: str = INTERACTIVE
) -> list[tuple[tuple[int, int], DemandSeries]]:
    """Input tokens of ``tiers`` together, called ``name``, where a model and region has any."""
    found = []
    for m, model in enumerate(traffic.models):
        for r, region in enumerate(traffic.regions):

            def belongs(k: SeriesKey, model: str = model, region: str = region) -> bool:
                return (k.model, k.region) == (model, region) and k.tier in tiers

            series = traffic.demand.total(SeriesKey(model, region, name), INPUT_TOKENS, belongs)
            if np.nansum(series.values) > 0:
                found.append(((m, r), series))
    return found


def _require(answer: WindowPlan, what: str) -> None:
    if answer.status in (OPTIMAL, FEASIBLE):
        return
    if answer.conflict:
        raise Infeasible(f"There is no feasible plan for {what}. {answer.conflict}")
    raise Infeasible(
        f"The solver found no plan for {what} in its time; raise objective.time_limit_s or "
        "widen objective.gap."
    )
