"""A day busier than those before: by how much one may be, and requests and demand that are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forecasting.demand import DemandSeries
from planner.studies.traffic.demand import Demand
from planner.studies.traffic.ranking import stretches
from planner.studies.traffic.traffic import AMOUNTS, merge
from planner.studies.traffic.window import DAY_S, Window
from simulation.trace import Trace

ONE_IN = 10  # days has more than there is room for, where so many are known (assumed)
DAYS = 3  # below which none says how much another may have
MOST = 1.9  # times the requests: beyond it the days before tell nothing
NOTICED = 1.01


@dataclass(frozen=True, slots=True)
class Rise:
    """``times`` the requests of the busiest of the days that a day is rehearsed on, as seen on so
    many ``days``."""

    times: float
    days: int


def risen(demand: DemandSeries, window: Window, before: Sequence[Window]) -> Rise | None:
    """What a day may have over the busiest of those that it would have been rehearsed on, which lie
    as many days back as ``before`` do from ``window``: of the days before its first decision and at
    its time of day, exceeded by one in ONE_IN were the one to come and they in any order, at least
    by the most of them. None where too few are known, or none had more."""
    known = float(window.origins_s[0])
    back = [round((window.start_s - one.start_s) / DAY_S) for one in before]
    apart = [abs(window.start_s - one.start_s - DAY_S * days) for one, days in
             zip(before, back, strict=True)]  # fmt: skip
    if not back or min(back) < 1 or max(apart) > 1e-6:
        return None
    last_s = min(window.start_s - DAY_S, known - window.duration_s)
    amounts = {
        round((one.start_s - last_s) / DAY_S): one.amount
        for one in stretches(demand, window.duration_s, phase_s=last_s, step_s=DAY_S)
        if one.start_s <= last_s + 1e-6 and one.amount > 0
    }
    ratios = [
        amount / max(amounts[day - days] for days in back)
        for day, amount in amounts.items()
        if all(day - days in amounts for days in back)
    ]
    if len(ratios) < DAYS:
        return None
    times = float(np.quantile(ratios, 1 - 1 / ONE_IN, method="weibull"))
    return Rise(min(times, MOST), len(ratios)) if times > NOTICED else None


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


def grown(demand: Demand, share: float, start_s: float, end_s: float) -> Demand:
    """With ``share`` times of all that came in ``[start_s, end_s)``."""
    factor = np.where(demand.inside(start_s, end_s), share, 1.0)
    return replace(demand, **{name: getattr(demand, name) * factor for name in AMOUNTS})
