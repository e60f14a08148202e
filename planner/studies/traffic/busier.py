"""A day busier than those before: by how much one may be, and requests and demand that are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from forecasting.demand import REQUESTS, DemandSeries, SeriesKey
from planner.catalogue.shapes import shapes
from planner.studies.traffic.demand import Demand
from planner.studies.traffic.ranking import ALL, stretches
from planner.studies.traffic.traffic import AMOUNTS, merge
from planner.studies.traffic.window import DAY_S, HOUR_S, Window
from simulation.arrays import FloatArray
from simulation.trace import Trace

ONE_IN = 10  # days has more than there is room for, where so many are known (assumed)
DAYS = 3  # below which none says how much another may have
MOST = 1.9  # times the requests: beyond it the days before tell nothing
NOTICED = 1.01
UNSEEN = "office"  # the day that is supposed where none was seen (assumed)
STEPS = 288  # of a day, of 5 minutes


@dataclass(frozen=True, slots=True)
class Growth:
    """``times`` the requests that a model had on the busiest of the days that a day is rehearsed
    on, as seen on so many ``days``; 1 where none had more, or too few tell. 0 days: none was seen,
    and as many as the hours to come may have in the day that is supposed then."""

    model: str
    times: float
    days: int


@dataclass(frozen=True, slots=True)
class Rise:
    """Of the model that may grow most, by ``times``, as seen on so many ``days``; all of them under
    ``models``: one that grows while others shrink is not hidden by their sum."""

    times: float
    days: int
    models: tuple[Growth, ...]


def rises(
    demand: Demand, models: Sequence[str], window: Window, before: Sequence[Window]
) -> Rise | None:
    """Each model by itself; None where none may have more than before."""
    growths = []
    for model in models:
        series = demand.total(ALL, REQUESTS, partial(_of, model))
        growths.append(risen(series, window, before, model))
    most = max(
        (growth for growth in growths if growth is not None),
        key=lambda growth: growth.times,
        default=None,
    )
    if most is None:
        return None
    known_growths = (
        growth or Growth(model, 1.0, 0) for model, growth in zip(models, growths, strict=True)
    )
    return Rise(most.times, most.days, tuple(known_growths))


def _of(model: str, key: SeriesKey) -> bool:
    return key.model == model


def risen(
    demand: DemandSeries, window: Window, before: Sequence[Window], model: str = ""
) -> Growth | None:
    """What a day may have over the busiest of those that it would have been rehearsed on, which lie
    as many days back as ``before`` do from ``window``: of the days before its first decision and at
    its time of day, exceeded by one in ONE_IN were the one to come and they in any order, at least
    by the most of them. None where too few are known, or none had more. Where no day lies before,
    what ``unseen`` says."""
    if len(before) == 1 and window.start_s - before[0].start_s < DAY_S - 1e-6:
        most = unseen(window, before[0])
        return Growth(model, min(most, MOST), 0) if most > NOTICED else None
    known = float(window.origins_s[0])
    back = [round((window.start_s - earlier.start_s) / DAY_S) for earlier in before]
    apart = [abs(window.start_s - its_window.start_s - DAY_S * days) for its_window, days in
             zip(before, back, strict=True)]  # fmt: skip
    if not back or min(back) < 1 or max(apart) > 1e-6:
        return None
    last_s = min(window.start_s - DAY_S, known - window.duration_s)
    amounts = {
        round((stretch.start_s - last_s) / DAY_S): stretch.amount
        for stretch in stretches(demand, window.duration_s, phase_s=last_s, step_s=DAY_S)
        if stretch.start_s <= last_s + 1e-6 and stretch.amount > 0
    }
    ratios = [
        amount / max(amounts[day - days] for days in back)
        for day, amount in amounts.items()
        if all(day - days in amounts for days in back)
    ]
    if len(ratios) < DAYS:
        return None
    times = float(np.quantile(ratios, 1 - 1 / ONE_IN, method="weibull"))
    return Growth(model, min(times, MOST), len(ratios)) if times > NOTICED else None


def unseen(window: Window, before: Window) -> float:
    """Requests/s of ``window`` over those of the stretch before it where no whole day was seen: by
    the day UNSEEN, of whose times to begin at one in ONE_IN has more. A night says nothing of the
    noon after it. 1 within an hour, of which shapes by the hour say nothing."""
    if window.duration_s <= HOUR_S:
        return 1.0
    clock = np.arange(STEPS) * DAY_S / STEPS
    hours = (np.arange(24) + 0.5) * HOUR_S
    rate = np.interp(clock, hours, shapes()[UNSEEN].by_hour, period=DAY_S)
    days = 2 + int((window.end_s - before.start_s) // DAY_S)
    step_s = DAY_S / STEPS
    passed = np.concatenate([[0.0], np.cumsum(np.tile(rate, days))]) * step_s

    def mean(begins: float, ends: float) -> FloatArray:
        until = [np.interp(clock + offset, np.arange(len(passed)) * step_s, passed)
                 for offset in (begins, ends)]  # fmt: skip
        return np.asarray((until[1] - until[0]) / (ends - begins))

    origin = before.start_s
    in_window = mean(window.start_s - origin, window.end_s - origin)
    return float(np.quantile(in_window / mean(0.0, before.end_s - origin), 1 - 1 / ONE_IN))


def times(trace: Trace, share: float, within_s: float, rng: np.random.Generator) -> Trace:
    """``share`` times the requests of ``trace``: a random part of them, or all, again as often as
    it takes, and a part again; each again at most half of ``within_s`` from its time."""
    drawn = rng.random(len(trace)) < share % 1.0
    if share < 1.0:
        return trace.rows(drawn)

    def again(part: Trace) -> Trace:
        moved = part.arrival_s + rng.uniform(-within_s / 2, within_s / 2, len(part))
        arrival = np.sort(np.clip(moved, 0.0, float(trace.arrival_s[-1])))
        return replace(part, arrival_s=arrival)

    parts = [*[trace] * (int(share) - 1), trace.rows(drawn)]
    more = [again(part) for part in parts if len(part)]
    return merge([trace, *more], trace.provenance) if more else trace


def times_by_model(
    trace: Trace, shares: FloatArray, within_s: float, rng: np.random.Generator
) -> Trace:
    """``shares`` ``[models]`` times the requests of each model."""
    there = np.unique(trace.model)
    parts = [times(trace.rows(trace.model == m), float(shares[m]), within_s, rng) for m in there]
    return merge(parts, trace.provenance) if parts else trace


def grown(demand: Demand, shares: Mapping[str, float], start_s: float, end_s: float) -> Demand:
    """With ``shares`` times of all that came of each model in ``[start_s, end_s)``."""
    inside = demand.inside(start_s, end_s)
    factor = np.ones((len(demand.keys), demand.bins))
    for row, key in enumerate(demand.keys):
        factor[row, inside] = shares.get(key.model, 1.0)
    return replace(demand, **{name: getattr(demand, name) * factor for name in AMOUNTS})
