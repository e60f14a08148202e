"""The levels window by window along a scenario's traffic, each at its own speed of acting (A8).

Operators are planned anew every 10 s and serve within the second; runs of layers every minute, by
what table 2 of CoCoServe says; whole replicas every minute, after the scenario's start-up. A plan
is made from the interval before it, or from a forecast by the minute; each level is given the least
headroom with which it meets the same share of the requests, found in hindsight: by a replay of some
windows' requests, where there are images by the mean latency of windows. Beside them stands the
plan of the busiest hour, held all the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import polars as pl

from forecasting.backtest import rolling_forecasts
from forecasting.demand import REQUESTS, DemandSeries, SeriesKey
from forecasting.errors import ForecastError
from forecasting.selection import forecaster
from planner.errors import ScenarioError
from planner.scenario.build import Hardware
from planner.studies.plain import OPTIONAL, so_many_gpus
from planner.studies.progress import Progress
from planner.studies.provisioning.load import of_place
from planner.studies.provisioning.problems import problem_of
from planner.studies.provisioning.values import MODEL, MODULE, OPERATOR, WORDS, Case, Sentences
from planner.studies.traffic.groups import interactive
from planner.studies.traffic.traffic import Traffic
from simulation.arrays import FloatArray
from simulation.performance.memory import MEMORY_SHARE
from simulation.provisioning.levels import Savings, saved
from simulation.provisioning.over_time import Course, acts_s, over_time
from simulation.provisioning.replay import Requests, replayable
from simulation.provisioning.sampled import Sampled
from simulation.provisioning.windows import Windows, seen_before, windows_of

OFF, OBSERVED, FORECAST = "off", "observed", "forecast"
PlannedOn = Literal["off", "observed", "forecast"]
WINDOW_S, MINUTE_S = 10.0, 60.0
EVERY = {OPERATOR: 1, MODULE: 6, MODEL: 6}  # windows that a plan stands for
ATTAINMENT = 0.95
HISTORY_S = 2 * 86_400.0  # that a forecast is fitted to
METHOD = "arima"  # by the minute; a scenario's own method where it names one


@dataclass(frozen=True, slots=True, eq=False)
class Following:
    """What courses follow, ``[start_s, end_s)`` of the traffic, and what their plans are told."""

    hardware: Hardware
    traffic: Traffic
    start_s: float
    end_s: float
    levels: tuple[str, ...]
    known: str  # OBSERVED or FORECAST
    method: str  # of the forecast
    startup_s: float
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class ModelDemand:
    """A model's windows in a region and their requests, and what plans of each level are told of
    them (None: the interval before), also in words."""

    windows: Windows
    requests: Requests
    seen: dict[str, Windows] | None
    known: str


@dataclass(frozen=True, slots=True, eq=False)
class Journey:
    """One phase of one model over the window: its courses by level."""

    case: Case
    load: ModelDemand
    courses: dict[str, Course]
    replayed: int = 0  # windows; none: limits are kept by means
    held: Mapping[str, float] = field(default_factory=dict)  # attainment of the case's own levels


@dataclass(frozen=True, slots=True)
class Held:
    """A level's plan of the busiest hour, held all the time. ``attainment``: of the requests that
    were replayed."""

    gpus: int
    gpu_hours: float
    attainment: float


@dataclass(frozen=True, slots=True)
class CourseFigures:
    """A level over the window: its mean memory, the headroom it was given beyond the load, and the
    share of requests within the limit, in a replay where there is one and by means of windows."""

    every_s: float
    acts_s: float
    gpu_hours: float
    gpus_most: int
    kwh: float
    memory_gb: float
    attainment: float
    by_means: float
    headroom: float
    refused: int
    as_whole: float  # share of the windows in which it stands as whole replicas do
    held: Held | None = field(metadata={OPTIONAL: True})

    @property
    def kept(self) -> bool:
        """Whether it meets what it was asked to at any headroom."""
        return self.attainment >= ATTAINMENT


@dataclass(frozen=True, slots=True)
class CourseTotal:
    """A level over the window, all pools together."""

    gpu_hours: float
    kwh: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class CoursePool:
    model: str
    region: str
    gpu: str
    phase: str
    slo_ms: float
    replayed_windows: int  # 0: limits are kept by means
    levels: dict[str, CourseFigures]
    savings: dict[str, Savings]


@dataclass(frozen=True, slots=True)
class OverTime:
    known: str
    window_s: float
    windows: int
    attainment: float
    replayed_windows: int  # of the pool with fewest; 0: limits are kept by means
    levels: dict[str, CourseTotal]
    savings: dict[str, Savings]
    pools: tuple[CoursePool, ...]


def journeys(cases: list[Case], following: Following, progress: Progress) -> list[Journey]:
    """Courses of the chosen cases."""
    journeys = []
    loads: dict[tuple[str, str], ModelDemand] = {}
    for done, case in enumerate(cases):
        progress(done / len(cases), f"{case.phase.capitalize()} of {case.model} window by window")
        place = case.model, case.region
        if place not in loads:
            loads[place] = _load(following, place)
        load = loads[place]
        room = MEMORY_SHARE * case.service.gpu.memory_bytes
        judge = None
        if replayable(case.problem):
            stations = 1 if following.levels == (MODEL,) else len(case.problem.names)
            judge = Sampled(load.windows, load.requests, case.service, stations, room)
        courses = over_time(
            load.windows,
            case.service,
            partial(problem_of, weights=case.weights, measured=case.measured, max_replicas=512),
            room,
            startup_s=following.startup_s,
            attainment=ATTAINMENT,
            known=load.seen,
            levels=following.levels,
            every=EVERY,
            judge=judge,
        )
        held = {}
        if judge is not None:
            count = load.windows.requests_s.size
            held = {
                name: judge.attainment([(level, case.problem)] * count)
                for name, level in case.levels.items()
            }
        replayed = 0 if judge is None else judge.picked.size
        journeys.append(Journey(case, load, courses, replayed, held))
    return journeys


def _load(following: Following, place: tuple[str, str]) -> ModelDemand:
    traffic, start_s, end_s = following.traffic, following.start_s, following.end_s
    back = start_s
    if following.known == FORECAST:
        back = max(traffic.demand.start_s, start_s - HISTORY_S)
    trace = traffic.requests(back, end_s, following.seed)
    own = of_place(trace, place, interactive(following.hardware))
    arrival = trace.arrival_s[own] + trace.start_s - start_s
    inside = arrival >= 0
    count = round((end_s - start_s) / WINDOW_S)
    requests = Requests(
        np.minimum(arrival[inside], (count - 0.5) * WINDOW_S),
        trace.input_tokens[own][inside].astype(np.int64),
        trace.output_tokens[own][inside].astype(np.int64),
    )
    windows = windows_of(requests.arrival_s, requests.isl, requests.osl, WINDOW_S)
    windows = _whole(windows, count)
    if following.known != FORECAST:
        return ModelDemand(windows, requests, None, "the interval before")
    minutes = round((end_s - back) / MINUTE_S)
    counts = np.bincount(((arrival + start_s - back) // MINUTE_S).astype(int), minlength=minutes)
    series = DemandSeries(
        SeriesKey(*place, "interactive"), back, MINUTE_S, counts[:minutes].astype(float), REQUESTS
    )
    lengths = seen_before(windows, EVERY[MODULE])
    seen = {}
    for level, by_minute in _forecast(following, series).items():
        rate = np.repeat(by_minute, round(MINUTE_S / WINDOW_S))[:count]
        seen[level] = Windows(WINDOW_S, rate, lengths.isl, lengths.osl)
    return ModelDemand(windows, requests, seen, f"a forecast by the minute ({following.method})")


def _forecast(following: Following, series: DemandSeries) -> dict[str, FloatArray]:
    """Requests/s that plans of each minute are made for: the most until the plan that follows it
    could serve. Fitted to what came before the window, then followed minute by minute."""
    origins = np.arange(following.start_s, series.end_s - 1e-6, MINUTE_S)
    ahead = {
        level: 1 + int(acts_s(level, following.startup_s) // MINUTE_S) for level in following.levels
    }
    steps = max(ahead.values())
    try:
        model = forecaster(following.method, horizon_bins=steps, truth=series)
        forecasts = rolling_forecasts(series, model, origins.tolist(), steps)
    except ForecastError as problem:
        raise ScenarioError(
            f"horizon: no forecast by the minute ({problem}) Start the window later, or plan on "
            "what was observed."
        ) from None
    mean = np.stack([forecast.mean for forecast in forecasts])  # [minutes, steps]
    return {
        level: np.maximum(mean[:, :count].max(axis=1), 0.0) / MINUTE_S
        for level, count in ahead.items()
    }


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


def figures(journeys: list[Journey], startup_s: float) -> OverTime:
    """Of every level and phase, and of all together."""
    pools = tuple(_pool(journey, startup_s) for journey in journeys)
    names = list(journeys[0].courses)
    totals = {
        name: CourseTotal(
            sum(pool.levels[name].gpu_hours for pool in pools),
            sum(pool.levels[name].kwh for pool in pools),
            sum(pool.levels[name].memory_gb for pool in pools),
        )
        for name in names
    }
    return OverTime(
        known=journeys[0].load.known,
        window_s=WINDOW_S,
        windows=int(journeys[0].load.windows.requests_s.size),
        attainment=ATTAINMENT,
        replayed_windows=min(pool.replayed_windows for pool in pools),
        levels=totals,
        savings=_savings(totals),
        pools=pools,
    )


def _pool(journey: Journey, startup_s: float) -> CoursePool:
    case = journey.case
    levels = {
        name: CourseFigures(
            every_s=EVERY[course.level] * WINDOW_S,
            acts_s=acts_s(course.level, startup_s),
            gpu_hours=course.gpu_hours(WINDOW_S),
            gpus_most=int(course.devices.max()),
            kwh=course.kwh(WINDOW_S),
            memory_gb=float(course.memory_bytes.mean() / 1e9),
            attainment=course.attainment,
            by_means=course.by_means,
            headroom=course.headroom,
            refused=course.refused,
            as_whole=_as_whole(course),
            held=_held(journey, name),
        )
        for name, course in journey.courses.items()
    }
    return CoursePool(
        model=case.model,
        region=case.region,
        gpu=case.gpu,
        phase=case.phase,
        slo_ms=case.service.slo_s * 1e3,
        replayed_windows=journey.replayed,
        levels=levels,
        savings=_savings(levels),
    )


def _as_whole(course: Course) -> float:
    served = [plan[0] for plan in course.plans if plan is not None]
    return sum(level.replicas is not None for level in served) / max(len(served), 1)


def _held(journey: Journey, name: str) -> Held | None:
    if name not in journey.held:
        return None
    gpus = journey.case.levels[name].devices
    hours = journey.load.windows.requests_s.size * WINDOW_S / 3600
    return Held(gpus, gpus * hours, journey.held[name])


def _savings(levels: Mapping[str, CourseFigures | CourseTotal]) -> dict[str, Savings]:
    amounts = {name: (own.gpu_hours, own.kwh, own.memory_gb) for name, own in levels.items()}
    whole = amounts.pop(MODEL)
    return {name: saved(whole, own) for name, own in amounts.items()}


def table(journeys: list[Journey], start_s: float) -> pl.DataFrame:
    """One row per window, phase and level."""
    frames = []
    for journey in journeys:
        case, requests_s = journey.case, journey.load.windows.requests_s
        for level, course in journey.courses.items():
            keys: dict[str, Any] = {
                "model": case.model,
                "region": case.region,
                "gpu": case.gpu,
                "phase": case.phase,
                "level": level,
            }
            frame = pl.DataFrame(
                {
                    "time_s": start_s + WINDOW_S * np.arange(requests_s.size),
                    "requests_s": requests_s,
                    "gpus": course.devices,
                    "power_w": course.power_w,
                    "memory_gb": course.memory_bytes / 1e9,
                    "met": course.met,
                }
            )
            labels = [pl.lit(value).alias(name) for name, value in keys.items()]
            frames.append(frame.select(*labels, pl.all()))
    return pl.concat(frames)


def sentences(over_time: OverTime) -> Sentences:
    lost = [*_missing(over_time)]
    won: list[str] = []
    by = (
        "in a replay of {} windows"
        if over_time.replayed_windows
        else ("by the mean latency of each window; requests are not replayed")
    )
    by = by.format(over_time.replayed_windows)
    for level, label in ((OPERATOR, "operators"), (MODULE, "layers")):
        share = over_time.savings[level].gpus if level in over_time.savings else None
        if share is None:
            continue
        own, whole = (over_time.levels[name].gpu_hours for name in (level, MODEL))
        if share <= 0.005:
            lost.append(
                f"Window by window, planning by {label} saves no GPU-hours here: {own:,.1f} "
                f"against {whole:,.1f} by whole replicas."
            )
        elif all(pool.levels[name].kept for pool in over_time.pools for name in (level, MODEL)):
            won.append(
                f"Window by window, planning by {label} takes {own:,.1f} GPU-hours where whole "
                f"replicas take {whole:,.1f}: {share:.0%} fewer at {ATTAINMENT:.0%} of the "
                f"requests within the limit, {by}." + _by_speed(over_time, level)
            )
    return Sentences((*lost, *_static(over_time)), tuple(won))


def _by_speed(over_time: OverTime, level: str) -> str:
    """How much of what a level saves is when it acts, not how it is cut."""
    share = min(pool.levels[level].as_whole for pool in over_time.pools)
    if share < 0.5:
        return ""
    one = over_time.pools[0].levels
    return (
        f" In {share:.0%} of the windows or more its plan is that of whole replicas: what it saves "
        f"is acting within {one[level].acts_s:.1f} s, on GPUs where the engine runs already, "
        f"instead of {one[MODEL].acts_s:,.0f} s."
    )


def _missing(over_time: OverTime) -> Iterator[str]:
    """Levels that requests do not confirm at any headroom."""
    for pool in over_time.pools:
        for level, one in pool.levels.items():
            if not one.kept:
                yield (
                    f"Window by window, {pool.phase} of {pool.model} in {pool.region} "
                    f"{WORDS[level]} keeps {pool.slo_ms:,.0f} ms for {one.attainment:.1%} of the "
                    f"requests, not {ATTAINMENT:.0%}, even planned for {1 + one.headroom:.0f} "
                    "times the load: its GPU-hours are not to be compared."
                )


def _static(over_time: OverTime) -> Iterator[str]:
    """Where planning anew takes more than holding the plan of the busiest hour."""
    for pool in over_time.pools:
        for level, one in pool.levels.items():
            held = one.held
            if held and held.attainment >= ATTAINMENT and held.gpu_hours < one.gpu_hours - 0.05:
                yield (
                    f"{pool.phase.capitalize()} of {pool.model} in {pool.region} {WORDS[level]}: "
                    f"the {so_many_gpus(held.gpus)} of the busiest hour, held all the time, take "
                    f"{held.gpu_hours:,.1f} GPU-hours and keep {held.attainment:.1%} of the "
                    f"requests within the limit; planned anew every {one.every_s:.0f} s it takes "
                    f"{one.gpu_hours:,.1f}."
                )
