"""Plan each level (operators, modules, whole replicas) again and again along a scenario's traffic.

A window is an interval of 10 s. Operators are planned every window and serve within a second.
Modules are planned every minute, with the delay of CoCoServe's table 2. Whole replicas are planned
every minute, with the scenario's cold start. A plan is made from the demand of the interval before
it, or from a forecast by the minute.

Each level gets the smallest headroom (extra load planned for) with which it attains the same share
of requests within the limit. The headroom is found with future data: by a replay of some windows,
or by mean latencies for models with images. For comparison, one plan for the busiest hour is held
all the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from forecasting.backtest import rolling_forecasts
from forecasting.demand import REQUESTS, DemandSeries, SeriesKey
from forecasting.errors import ForecastError
from forecasting.selection import forecaster
from planner.domain.progress import Progress
from planner.domain.provisioning.levels import problem_of
from planner.domain.provisioning.load import cached_tokens, is_of_pool
from planner.domain.provisioning.unit import MODEL, MODULE, OPERATOR, Case
from planner.domain.traffic.groups import interactive
from planner.domain.traffic.traffic import Traffic
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware
from simulation.arrays import FloatArray
from simulation.provisioning.over_time import LevelOverTime, action_delay_s, over_time
from simulation.provisioning.replay import Requests, can_replay
from simulation.provisioning.windows import (
    SampledWindows,
    Windows,
    demand_of_previous_block,
    windows_of,
)

OFF, OBSERVED, FORECAST = "off", "observed", "forecast"
PlannedOn = Literal["off", "observed", "forecast"]
WINDOW_S, MINUTE_S = 10.0, 60.0  # operators are planned each window, the other levels each minute
EVERY = {OPERATOR: 1, MODULE: 6, MODEL: 6}  # windows per plan
ATTAINMENT = 0.95
HISTORY_S = 2 * 86_400.0  # length of history for a fit
METHOD = "arima"  # default method of the forecast by the minute


@dataclass(frozen=True, slots=True, eq=False)
class TrackedTraffic:
    """The traffic of ``[start_s, end_s)`` (epoch s) that plans follow, and what they know of it."""

    hardware: Hardware
    traffic: Traffic
    start_s: float
    end_s: float
    levels: tuple[str, ...]  # to plan: MODEL, MODULE or OPERATOR
    known: str  # what plans are made from: OBSERVED (the interval before) or FORECAST
    method: str  # forecast method
    startup_s: float  # cold start of a replica
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class ModelDemand:
    """The demand of a model in a region, in windows of ``WINDOW_S`` seconds."""

    windows: Windows
    requests: Requests
    # Demand that the plans of each level are made from; None: that of the interval before.
    planned_on: dict[str, Windows] | None
    known: str  # the same in words


@dataclass(frozen=True, slots=True, eq=False)
class TrackedCase:
    """One phase of one model over the whole time, planned window by window."""

    case: Case
    load: ModelDemand
    courses: dict[str, LevelOverTime]  # by level: its plans, and how they served
    replayed: int = 0  # replayed windows; 0: limits are checked by mean latencies
    # By level: attainment of the plan for the busiest hour, if it is kept all the time.
    fixed_attainment: Mapping[str, float] = field(default_factory=dict)


def refuse_without_history(known: str, traffic: Traffic, start_s: float) -> None:
    """Raise ScenarioError if plans use a forecast without traffic before ``start_s`` (epoch s).

    ``known`` is what plans are made from.
    """
    if known == FORECAST and start_s <= traffic.demand.start_s:
        raise ScenarioError(
            "horizon: no traffic is known before the window, so there is no forecast. Start the "
            "window later, or plan on observed demand."
        )


def track_cases(
    cases: list[Case], tracked: TrackedTraffic, progress: Progress
) -> list[TrackedCase]:
    """Return each case planned at every level, window by window along the traffic."""
    tracked_cases = []
    loads: dict[tuple[str, str, bool], ModelDemand] = {}
    for done, case in enumerate(cases):
        progress(done / len(cases), f"{case.phase.capitalize()} of {case.model} window by window")
        # Prefill does not compute cached tokens, and decode reads them.
        without_cached = case.phase == "prefill" and case.service.cached > 0
        key = case.model, case.region, without_cached
        if key not in loads:
            model_region = case.model, case.region
            loads[key] = _model_demand(tracked, model_region, without_cached=without_cached)
        tracked_cases.append(_track_case(case, loads[key], tracked))
    return tracked_cases


def _track_case(case: Case, load: ModelDemand, tracked: TrackedTraffic) -> TrackedCase:
    """Return a case planned at every level, window by window along the demand ``load``."""
    sampled = None
    if can_replay(case.problem):
        # A whole replica is one queue; otherwise each operator is one.
        stations = 1 if tracked.levels == (MODEL,) else len(case.problem.names)
        sampled = SampledWindows(
            load.windows, load.requests, case.service, stations, case.device_bytes
        )
    courses = over_time(
        load.windows,
        case.service,
        partial(problem_of, weights=case.weights, measured=case.measured, max_replicas=512),
        case.device_bytes,
        startup_s=tracked.startup_s,
        attainment=ATTAINMENT,
        planned_on=load.planned_on,
        levels=tracked.levels,
        every=EVERY,
        sampled_windows=sampled,
    )
    if sampled is None:
        return TrackedCase(case, load, courses)
    windows = load.windows.requests_s.size
    fixed_attainment = {
        name: sampled.attainment([(level, case.problem)] * windows)
        for name, level in case.levels.items()
    }
    return TrackedCase(case, load, courses, sampled.picked.size, fixed_attainment)


def _model_demand(
    tracked: TrackedTraffic, model_region: tuple[str, str], *, without_cached: bool
) -> ModelDemand:
    """Return the demand of a model and region (names) by window, and what plans know of it.

    Plans know the interval before them, or a forecast by the minute, with request lengths of the
    minute before. ``without_cached`` leaves cached tokens out of prompts.
    """
    traffic, start_s, end_s = tracked.traffic, tracked.start_s, tracked.end_s
    history_start_s = start_s
    if tracked.known == FORECAST:
        history_start_s = max(traffic.demand.start_s, start_s - HISTORY_S)
    trace = traffic.requests(history_start_s, end_s, tracked.seed)
    is_counted = is_of_pool(trace, model_region, interactive(tracked.hardware))
    prompt_tokens = trace.input_tokens.astype(np.int64)
    if without_cached:
        model, _ = model_region
        prompt_tokens -= cached_tokens(tracked.hardware, trace, model)
    arrival_s = trace.arrival_s[is_counted] + trace.start_s - start_s
    # Split the requests: those before the window are history for the forecast only.
    inside = arrival_s >= 0
    window_count = round((end_s - start_s) / WINDOW_S)
    # Requests after the last whole window count in it.
    requests = Requests(
        np.minimum(arrival_s[inside], (window_count - 0.5) * WINDOW_S),
        prompt_tokens[is_counted][inside],
        trace.output_tokens[is_counted][inside].astype(np.int64),
    )
    windows = windows_of(requests.arrival_s, requests.isl, requests.osl, WINDOW_S)
    empty_at_end = max(0, window_count - windows.requests_s.size)  # empty windows at the end
    windows = Windows(
        windows.seconds,
        np.pad(windows.requests_s, (0, empty_at_end)),
        np.pad(windows.isl, (0, empty_at_end), mode="edge"),
        np.pad(windows.osl, (0, empty_at_end), mode="edge"),
    )
    if tracked.known != FORECAST:
        return ModelDemand(windows, requests, None, "the interval before")
    series = _demand_by_minute(
        arrival_s + start_s - history_start_s, model_region, history_start_s, end_s
    )
    lengths = demand_of_previous_block(windows, EVERY[MODULE])
    planned_on = {}
    for level, by_minute in _forecast_by_level(tracked, series).items():
        requests_s = np.repeat(by_minute, round(MINUTE_S / WINDOW_S))[:window_count]  # by window
        planned_on[level] = Windows(WINDOW_S, requests_s, lengths.isl, lengths.osl)
    words = f"a forecast by the minute ({tracked.method})"
    return ModelDemand(windows, requests, planned_on, words)


def _demand_by_minute(
    arrival_s: FloatArray, model_region: tuple[str, str], start_s: float, end_s: float
) -> DemandSeries:
    """Return the requests in each minute of ``[start_s, end_s)`` (epoch s).

    ``arrival_s`` are the times of requests after ``start_s``.
    """
    minutes = round((end_s - start_s) / MINUTE_S)
    counts = np.bincount((arrival_s // MINUTE_S).astype(int), minlength=minutes)
    return DemandSeries(
        key=SeriesKey(*model_region, "interactive"),
        start_s=start_s,
        bin_s=MINUTE_S,
        values=counts[:minutes].astype(float),
        unit=REQUESTS,
    )


def _forecast_by_level(tracked: TrackedTraffic, series: DemandSeries) -> dict[str, FloatArray]:
    """Return, by level, the requests/s that each minute is planned for, ``[minutes]``.

    It is the highest forecast of the minutes until the next plan of the level can serve. The
    forecast is fitted to the history before ``tracked.start_s``, then updated each minute. Raises
    ScenarioError if it cannot be fitted.
    """
    origins = np.arange(tracked.start_s, series.end_s - 1e-6, MINUTE_S)
    minutes_ahead = {
        level: 1 + int(action_delay_s(level, tracked.startup_s) // MINUTE_S)
        for level in tracked.levels
    }
    horizon = max(minutes_ahead.values())
    try:
        model = forecaster(tracked.method, horizon_bins=horizon, truth=series)
        forecasts = rolling_forecasts(series, model, origins.tolist(), horizon)
    except ForecastError as problem:
        raise ScenarioError(
            f"horizon: no forecast by the minute ({problem}) Start the window later, or plan on "
            "observed demand."
        ) from None
    requests = np.stack([forecast.mean for forecast in forecasts])  # [minute, minutes ahead]
    return {
        level: np.maximum(requests[:, :minutes].max(axis=1), 0.0) / MINUTE_S
        for level, minutes in minutes_ahead.items()
    }
