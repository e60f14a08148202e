"""Estimate by how much a day can be busier than the days before, and scale traffic to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from forecasting.demand import REQUESTS, DemandSeries, SeriesKey
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.traffic import (
    AMOUNTS,
    merge,
)
from planner.domain.traffic.window import (
    DAY_S,
    HOUR_S,
    Window,
)
from planner.domain.traffic.window_rank import (
    ALL,
    stretches,
)
from planner.inputs.catalogue.shapes import shapes
from simulation.arrays import FloatArray
from simulation.trace import Trace

# One day in ONE_IN has more growth than is planned for, if enough days are known (assumed).
ONE_IN = 10
DAYS = 3  # smallest number of days that growth is estimated from
MOST = 1.9  # largest growth factor: beyond it, the days before tell nothing
NOTICED = 1.01  # smaller growth counts as none
UNSEEN = "office"  # shape of the day that is assumed if no whole day was observed
STEPS = 288  # steps of 5 minutes per day


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of one model's requests over the busiest of its backtest days.

    ``times`` is 1 if no day had more, or if too few days are known. If ``times`` is above 1 and
    ``days`` is 0, no whole day was observed. The growth then comes from the assumed shape of a day
    (``unseen``).
    """

    model: str
    times: float  # requests of a day, divided by those of its busiest backtest day
    days: int  # days that the estimate uses


@dataclass(frozen=True, slots=True)
class Rise:
    """The growth of every model, and the figures of the model with the largest growth.

    Models are separate, because the sum of all models would hide one that grows while others
    shrink.
    """

    times: float
    days: int
    models: tuple[Growth, ...]


def rises(
    demand: Demand, models: Sequence[str], window: Window, before: Sequence[Window]
) -> Rise | None:
    """Return the possible growth of each model, or None if no model can grow."""
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
    """Return the growth of a day over the busiest of its backtest days, or None.

    Each known day before the first decision gives one ratio: its requests over those of its busiest
    backtest day. The offsets of backtest days are those of ``before`` from ``window``, in days. The
    growth is the Weibull quantile of these ratios: a new day exceeds it with probability
    1 / ``ONE_IN``. The largest ratio and ``MOST`` limit it.

    None means that fewer than ``DAYS`` ratios are known, that the growth is at most ``NOTICED``, or
    that ``before`` are not at the window's time of day. If the only backtest window begins less
    than a day before, ``unseen`` gives the growth.
    """
    if len(before) == 1 and window.start_s - before[0].start_s < DAY_S - 1e-6:
        most = unseen(window, before[0])
        return Growth(model, min(most, MOST), 0) if most > NOTICED else None
    known = float(window.origins_s[0])
    back = [round((window.start_s - earlier.start_s) / DAY_S) for earlier in before]
    apart = [abs(window.start_s - its_window.start_s - DAY_S * days) for its_window, days in
             zip(before, back, strict=True)]  # fmt: skip
    if not back or min(back) < 1 or max(apart) > 1e-6:
        return None
    # Only days that are over before the first decision: later ones are not known yet.
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
    """Return the growth of requests/s in ``window`` over ``before`` if no whole day was observed.

    A trace of a night alone does not show the noon after it. The rates therefore follow the day
    shape ``UNSEEN``. The ratio is computed for every time of day at which ``before`` could begin.
    The result is the quantile that one ratio in ``ONE_IN`` exceeds. Windows of up to an hour return
    1, because the shapes are hourly.
    """
    if window.duration_s <= HOUR_S:
        return 1.0
    clock = np.arange(STEPS) * DAY_S / STEPS
    hours = (np.arange(24) + 0.5) * HOUR_S
    rate = np.interp(clock, hours, shapes()[UNSEEN].by_hour, period=DAY_S)
    days = 2 + int((window.end_s - before.start_s) // DAY_S)
    step_s = DAY_S / STEPS
    # Cumulative requests over enough repeated days, so that a mean rate is a difference.
    passed = np.concatenate([[0.0], np.cumsum(np.tile(rate, days))]) * step_s

    def mean(begins: float, ends: float) -> FloatArray:
        until = [np.interp(clock + offset, np.arange(len(passed)) * step_s, passed)
                 for offset in (begins, ends)]  # fmt: skip
        return np.asarray((until[1] - until[0]) / (ends - begins))

    origin = before.start_s
    in_window = mean(window.start_s - origin, window.end_s - origin)
    return float(np.quantile(in_window / mean(0.0, before.end_s - origin), 1 - 1 / ONE_IN))


def times(trace: Trace, share: float, within_s: float, rng: np.random.Generator) -> Trace:
    """Return ``trace`` with ``share`` times the requests.

    Below 1, a random part is kept. Above 1, requests are repeated, and the rest is a random part.
    Each repeat arrives at most half of ``within_s`` from the original.
    """
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
    """Return ``trace`` with each model's requests multiplied by its entry of ``shares [models]``.

    ``within_s`` limits the time between a request and its repeats, as in ``times``.
    """
    there = np.unique(trace.model)
    parts = [times(trace.rows(trace.model == m), float(shares[m]), within_s, rng) for m in there]
    return merge(parts, trace.provenance) if parts else trace


def grown(demand: Demand, shares: Mapping[str, float], start_s: float, end_s: float) -> Demand:
    """Return ``demand`` with each model's amounts in ``[start_s, end_s)`` multiplied.

    ``shares`` holds the factor of each model name. The default factor is 1.
    """
    inside = demand.inside(start_s, end_s)
    factor = np.ones((len(demand.keys), demand.bins))
    for row, key in enumerate(demand.keys):
        factor[row, inside] = shares.get(key.model, 1.0)
    return replace(demand, **{name: getattr(demand, name) * factor for name in AMOUNTS})
