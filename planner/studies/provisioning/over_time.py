"""The levels window by window along a scenario's traffic, each at its own speed of acting (A8).

Operators are planned anew every 10 s and serve within the second; runs of layers every minute, by
what table 2 of CoCoServe says; whole replicas every minute, after the scenario's start-up. A plan
is made from the interval before it, or from a forecast by the minute; each level is given the least
headroom with which it meets the same share of the requests, found in hindsight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from forecasting.backtest import rolling_forecasts
from forecasting.demand import REQUESTS, DemandSeries, SeriesKey
from forecasting.errors import ForecastError
from forecasting.selection import forecaster
from planner.errors import ScenarioError
from planner.scenario.build import Hardware
from planner.studies.progress import Progress
from planner.studies.provisioning.problems import problem_of
from planner.studies.traffic.forecasts import interactive
from planner.studies.traffic.traffic import Traffic
from planner.studies.traffic.window import Window
from simulation.arrays import BoolArray, FloatArray
from simulation.performance.memory import MEMORY_SHARE
from simulation.provisioning.over_time import Course, acts_s, at_attainment
from simulation.provisioning.windows import Windows, seen_before, windows_of
from simulation.trace import Trace

if TYPE_CHECKING:
    from planner.studies.commands.provision import Case

OFF, OBSERVED, FORECAST = "off", "observed", "forecast"
OVER_TIME = (OFF, OBSERVED, FORECAST)
WINDOW_S, MINUTE_S = 10.0, 60.0
EVERY = {"operator": 1, "module": 6, "model": 6}  # windows that a plan stands for
ATTAINMENT = 0.95
HISTORY_S = 2 * 86_400.0  # that a forecast is fitted to
METHOD = "arima"  # by the minute; a scenario's own method where it names one


@dataclass(frozen=True, slots=True, eq=False)
class Journey:
    """One phase of one model over the window: its courses by level."""

    case: Case
    windows: Windows
    courses: dict[str, Course]
    known: str  # what plans were told, in words


def journeys(
    cases: list[Case],
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    *,
    levels: tuple[str, ...],
    known: str,
    method: str,
    startup_s: float,
    seed: int,
    progress: Progress,
) -> list[Journey]:
    """Courses of the chosen cases; ahead of the trace, along the stretch of it before."""
    end_s = window.start_s if window.ahead else window.end_s
    start_s = end_s - window.duration_s
    found = []
    told: dict[tuple[str, str], tuple[Windows, dict[str, Windows] | None, str]] = {}
    for done, case in enumerate(cases):
        progress(done / len(cases), f"{case.phase.capitalize()} of {case.model} window by window")
        place = case.model, case.region
        if place not in told:
            told[place] = _demand(
                hardware, traffic, place, start_s, end_s, levels, known, method, startup_s, seed
            )
        windows, seen, words = told[place]
        courses = at_attainment(
            windows,
            case.service,
            partial(problem_of, weights=case.weights, measured=case.measured, max_replicas=512),
            MEMORY_SHARE * case.service.gpu.memory_bytes,
            startup_s=startup_s,
            attainment=ATTAINMENT,
            known=seen,
            levels=levels,
            every=EVERY,
        )
        found.append(Journey(case, windows, courses, words))
    return found


def _demand(
    hardware: Hardware,
    traffic: Traffic,
    place: tuple[str, str],
    start_s: float,
    end_s: float,
    levels: tuple[str, ...],
    known: str,
    method: str,
    startup_s: float,
    seed: int,
) -> tuple[Windows, dict[str, Windows] | None, str]:
    """Windows of a model and region, and what plans of each level are told of them."""
    back = max(traffic.demand.start_s, start_s - HISTORY_S) if known == FORECAST else start_s
    trace = traffic.requests(back, end_s, seed)
    mine = _of(trace, place, interactive(hardware))
    arrival = trace.arrival_s[mine] + trace.start_s - start_s
    inside = arrival >= 0
    count = round((end_s - start_s) / WINDOW_S)
    windows = windows_of(
        np.minimum(arrival[inside], (count - 0.5) * WINDOW_S),
        trace.input_tokens[mine][inside],
        trace.output_tokens[mine][inside],
        WINDOW_S,
    )
    windows = _whole(windows, count)
    if known != FORECAST:
        return windows, None, "the interval before"
    minutes = round((end_s - back) / MINUTE_S)
    counts = np.bincount(((arrival + start_s - back) // MINUTE_S).astype(int), minlength=minutes)
    series = DemandSeries(
        SeriesKey(*place, "interactive"), back, MINUTE_S, counts[:minutes].astype(float), REQUESTS
    )
    rates = _forecast(series, start_s, levels, method, startup_s)
    lengths = seen_before(windows, EVERY["module"])
    told = {}
    for level, by_minute in rates.items():
        rate = np.repeat(by_minute, round(MINUTE_S / WINDOW_S))[:count]
        told[level] = Windows(WINDOW_S, rate, lengths.isl, lengths.osl)
    return windows, told, f"a forecast by the minute ({method})"


def _forecast(
    series: DemandSeries, start_s: float, levels: tuple[str, ...], method: str, startup_s: float
) -> dict[str, FloatArray]:
    """Requests/s that plans of each minute are made for: the most until the plan that follows it
    could serve. Fitted to what came before the window, then followed minute by minute."""
    origins = np.arange(start_s, series.end_s - 1e-6, MINUTE_S)
    ahead = {level: 1 + int(acts_s(level, startup_s) // MINUTE_S) for level in levels}
    steps = max(ahead.values())
    try:
        model = forecaster(method, horizon_bins=steps, truth=series)
        forecasts = rolling_forecasts(series, model, origins.tolist(), steps)
    except ForecastError as problem:
        raise ScenarioError(
            f"horizon: no forecast by the minute ({problem}) Start the window later, or plan on "
            "what was observed."
        ) from None
    mean = np.stack([one.mean for one in forecasts])  # [minutes, steps]
    return {
        level: np.maximum(mean[:, :count].max(axis=1), 0.0) / MINUTE_S
        for level, count in ahead.items()
    }


def _of(trace: Trace, place: tuple[str, str], tiers: set[str]) -> BoolArray:
    """Requests of a model and region in ``tiers``."""
    m, r = trace.models.index(place[0]), trace.regions.index(place[1])
    codes = [i for i, name in enumerate(trace.tiers) if name in tiers]
    return np.asarray((trace.model == m) & (trace.region == r) & np.isin(trace.tier, codes))


def _whole(windows: Windows, count: int) -> Windows:
    """With empty windows at the end, where the last requests came before it."""
    lack = count - windows.requests_s.size
    if lack <= 0:
        return windows
    return Windows(
        windows.seconds,
        np.pad(windows.requests_s, (0, lack)),
        np.pad(windows.isl, (0, lack), mode="edge"),
        np.pad(windows.osl, (0, lack), mode="edge"),
    )


def document(found: list[Journey], startup_s: float) -> dict[str, Any]:
    """Figures of every level and phase, and of all together."""
    pools = []
    totals: dict[str, dict[str, float]] = {}
    for one in found:
        levels = {name: _course(one, course, startup_s) for name, course in one.courses.items()}
        for name, row in levels.items():
            mine = totals.setdefault(name, {"gpu_hours": 0.0, "kwh": 0.0, "memory_gb": 0.0})
            for key in mine:
                mine[key] += row[key]
        case = one.case
        pools.append(
            {
                "model": case.model, "region": case.region, "gpu": case.gpu, "phase": case.phase,
                "slo_ms": case.service.slo_s * 1e3, "levels": levels,
                "savings": {n: _saved(levels["model"], row) for n, row in levels.items()
                            if n != "model"},
            }
        )  # fmt: skip
    return {
        "known": found[0].known,
        "window_s": WINDOW_S,
        "windows": int(found[0].windows.requests_s.size),
        "attainment": ATTAINMENT,
        "levels": totals,
        "savings": {n: _saved(totals["model"], row) for n, row in totals.items() if n != "model"},
        "pools": pools,
    }


def _course(one: Journey, course: Course, startup_s: float) -> dict[str, Any]:
    """Figures of a course; memory is its mean, ``headroom`` what it was given beyond the load."""
    return {
        "every_s": EVERY[course.level] * WINDOW_S,
        "acts_s": acts_s(course.level, startup_s),
        "gpu_hours": course.gpu_hours(WINDOW_S),
        "gpus_most": int(course.devices.max()),
        "kwh": course.kwh(WINDOW_S),
        "memory_gb": float(course.memory_bytes.mean() / 1e9),
        "attainment": course.attainment,
        "headroom": course.headroom,
        "refused": course.refused,
    }


def _saved(model: dict[str, float], fine: dict[str, float]) -> dict[str, float | None]:
    keys = {"gpus": "gpu_hours", "energy": "kwh", "memory": "memory_gb"}
    return {n: 1.0 - fine[k] / model[k] if model[k] else None for n, k in keys.items()}


def table(found: list[Journey], start_s: float) -> pl.DataFrame:
    """One row per window, phase and level."""
    frames = []
    for one in found:
        count = one.windows.requests_s.size
        for level, course in one.courses.items():
            frames.append(
                pl.DataFrame(
                    {
                        "time_s": start_s + WINDOW_S * np.arange(count),
                        "requests_s": one.windows.requests_s,
                        "gpus": course.devices,
                        "power_w": course.power_w,
                        "memory_gb": course.memory_bytes / 1e9,
                        "met": course.met,
                    }
                ).select(
                    *(
                        pl.lit(value).alias(name)
                        for name, value in (
                            ("model", one.case.model), ("region", one.case.region),
                            ("gpu", one.case.gpu), ("phase", one.case.phase), ("level", level),
                        )
                    ),
                    pl.all(),
                )
            )  # fmt: skip
    return pl.concat(frames)


def words(document: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What does not pay, to be said first, and what does."""
    lost: list[str] = []
    won: list[str] = []
    for level, label in (("operator", "operators"), ("module", "layers")):
        saved = document["savings"].get(level)
        if saved is None or saved["gpus"] is None:
            continue
        mine, whole = (document["levels"][one]["gpu_hours"] for one in (level, "model"))
        if saved["gpus"] <= 0.005:
            lost.append(
                f"Window by window, planning by {label} saves no GPU-hours here: {mine:,.1f} "
                f"against {whole:,.1f} by whole replicas."
            )
        else:
            won.append(
                f"Window by window, planning by {label} takes {mine:,.1f} GPU-hours where whole "
                f"replicas take {whole:,.1f}: {saved['gpus']:.0%} fewer at as many requests met."
            )
    return lost, won
