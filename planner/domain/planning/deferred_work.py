"""Compute the deferrable load (NIW) that a plan must serve in each period.

Deferrable requests wait, up to ``Tier.urgent_after_s``, when they become urgent (before their
deadline). No work may remain by then. Sources: methods.md E6, and SageServe's future work (a
continuum of SLAs).

The work of every request is spread evenly over the time until it becomes urgent. Within a period,
it first fills the bins with the lowest interactive load (water filling). If more work fits below
the interactive peak than is needed, it is done too, because those replicas run anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from forecasting.demand import DemandSeries
from planner.domain.planning.inputs import Load, PlanInput
from planner.domain.planning.period_solver import Periods
from planner.domain.progress import silent
from planner.domain.traffic.forecasts import MEAN, forecast_window
from planner.domain.traffic.groups import DEFERRABLE, Group, by_model_and_region, interactive
from planner.optimizer.problem import Shift
from planner.optimizer.shifting import Work, cheapest_shift
from simulation.arrays import FloatArray, ratio
from simulation.fleet import Tier

BISECTION_STEPS = 40  # bisection steps of the search for a capacity


class TierWork(NamedTuple):
    """The deferrable work of a tier: tokens by time of arrival."""

    arrival_s: FloatArray  # epoch seconds
    urgent_after_s: float  # seconds after the arrival
    tokens: FloatArray  # input tokens


@dataclass(frozen=True, slots=True, eq=False)
class DeferredWork:
    """Work that may wait: input tokens by arrival, with the time from which they are urgent.

    All arrays are ``[rows]``, one row per tier and time of arrival, sorted by ``urgent_s``. Times
    are epoch seconds.
    """

    arrival_s: FloatArray
    urgent_s: FloatArray
    tokens: FloatArray

    @classmethod
    def of(cls, parts: Sequence[TierWork]) -> DeferredWork:
        """Return the work of several tiers together, by the time from which it is urgent."""
        arrival_s = np.concatenate([part.arrival_s for part in parts])
        urgent_s = np.concatenate([part.arrival_s + part.urgent_after_s for part in parts])
        tokens = np.concatenate([part.tokens for part in parts])
        order = np.argsort(urgent_s, kind="stable")
        return cls(arrival_s[order], urgent_s[order], tokens[order])

    def without_first(self, done: float) -> DeferredWork:
        """Return the work that remains after ``done`` tokens are served, the most urgent first."""
        remaining = np.clip(np.cumsum(self.tokens) - done, 0.0, self.tokens)
        return DeferredWork(self.arrival_s, self.urgent_s, remaining)

    def tokens_needed(self, start_s: float, end_s: float) -> float:
        """Return the tokens to serve in ``[start_s, end_s)`` (epoch s) so that none is late.

        Work is served at an even pace from its arrival, or from ``start_s``, until it is urgent.
        """
        begin = np.maximum(self.arrival_s, start_s)
        left_s = self.urgent_s - begin  # at most 0: all of the work is due
        share = ratio(end_s - begin, left_s, 1.0)
        return float(self.tokens @ np.clip(share, 0.0, 1.0))


def deferred_tps(inputs: PlanInput, interactive_tps: FloatArray, *, at_once: bool) -> FloatArray:
    """Return the deferrable input tokens/s to plan for, on top of ``interactive_tps``.

    Both have shape ``[period, model, region, bin]``. Each decision knows the work that arrived
    before it; with ``at_once``, only the work before the first decision is known. Later arrivals
    are as the scenario describes them, else at the rate of the period before the decision.
    """
    origins = inputs.window.origins_s
    if at_once:
        origins = np.full_like(origins, origins[0])
    series: dict[tuple[int, int], list[tuple[Tier, DemandSeries]]] = {}  # by model and region
    for tier in inputs.hardware.tiers:
        if tier.deferrable:
            for place, demand in by_model_and_region(inputs.traffic, {tier.name}, DEFERRABLE):
                series.setdefault(place, []).append((tier, demand))
    result = np.zeros_like(interactive_tps)
    for (m, r), tiers in series.items():
        result[:, m, r] = _deferred_tps_at(inputs, tiers, interactive_tps[:, m, r], origins)
    return result


def _deferred_tps_at(
    inputs: PlanInput,
    tiers: Sequence[tuple[Tier, DemandSeries]],
    interactive_tps: FloatArray,
    origins: FloatArray,
) -> FloatArray:
    """Return the ``deferred_tps`` of a model and region, ``[period, bin]``."""
    window, tps = inputs.window, np.zeros_like(interactive_tps)
    served = 0.0  # deferrable tokens that the periods so far serve
    for p, start_s in enumerate(window.period_starts_s):
        end_s = start_s + window.period_s
        known = [_work_known_at(inputs, tier, series, origins[p], end_s) for tier, series in tiers]
        work = DeferredWork.of(known).without_first(served)
        # Fill the bins with the lowest interactive load by the work that must be done by the end.
        needed = work.tokens_needed(start_s, end_s) / window.bin_s  # tokens/s, sum over bins
        load = interactive_tps[p]
        tps[p] = np.maximum(filled_level(load, needed) - load, 0.0)
        # The capacity for the interactive peak serves this much more in the other bins.
        below_peak = float((load.max() - load).sum())
        served += min(float(work.tokens.sum()), max(needed, below_peak) * window.bin_s)
    return tps


def _work_known_at(
    inputs: PlanInput, tier: Tier, series: DemandSeries, origin_s: float, end_s: float
) -> TierWork:
    """Return the work of ``tier`` per bin from the window's start to ``end_s``.

    ``origin_s`` is the time of the decision. Bins before it are observed. Later ones have the
    demand that the scenario describes, or else the mean rate of the period before the decision.
    Times are epoch seconds.
    """
    window, bin_s = inputs.window, inputs.window.bin_s
    bins = round((end_s - window.start_s) / bin_s)
    expected = inputs.traffic.described_demand(series.key, {tier.name}, series.unit, window)
    if expected is None:
        rate = mean_rate(series, origin_s - window.period_s, origin_s)
        expected = np.full(bins, rate * bin_s)
    tokens = expected[:bins] * window.growth_factors[:bins]
    observed = series.window(window.start_s, origin_s)
    if observed.bins:  # replace the expected amounts; nothing arrived before the series
        first = round((observed.start_s - window.start_s) / bin_s)
        tokens[:first] = 0.0
        tokens[first : first + observed.bins] = np.nan_to_num(observed.values)
    edges = np.asarray(window.start_s + bin_s * np.arange(bins), np.float64)
    return TierWork(edges, tier.urgent_after_s, tokens)


def mean_rate(series: DemandSeries, start_s: float, end_s: float) -> float:
    """Return the mean of a series in ``[start_s, end_s)`` per second; 0 if nothing was observed."""
    rate = series.window(start_s, end_s).rate()
    return float(np.nanmean(rate)) if np.any(~np.isnan(rate)) else 0.0


def filled_level(load: FloatArray, amount: float) -> float:
    """Return the level that the lowest bins of ``load [bin]`` reach if ``amount`` is added to them.

    The amount fills the lowest bins to an equal level, as water does. It is a sum over bins, in the
    unit of ``load``.
    """
    heights = np.sort(load)
    # The level if the amount fills the n lowest bins, by n. It is right if the next bin is higher.
    levels = (amount + np.cumsum(heights)) / np.arange(1, len(heights) + 1)
    next_height = np.append(heights[1:], np.inf)
    return float(levels[np.argmax(levels <= next_height)])


def level_deferred_tps(inputs: PlanInput, start_s: float, end_s: float) -> FloatArray:
    """Return the capacity of a static fleet that serves all demand, deferrable work in time.

    It is in input tokens/s, ``[model, region]``, for the demand of ``[start_s, end_s)`` (epoch s).
    It is 0 for models and regions without deferrable work.
    """
    hardware, traffic = inputs.hardware, inputs.traffic
    capacity_tps = np.zeros((len(traffic.models), len(traffic.regions)))
    tiers = [tier for tier in hardware.tiers if tier.deferrable]
    if not tiers:
        return capacity_tps
    loads = dict(by_model_and_region(traffic, interactive(hardware)))
    # All deferrable work is done as soon as that of the most urgent tier.
    bins = int(min(tier.urgent_after_s for tier in tiers) // inputs.window.bin_s)
    for place, series in by_model_and_region(traffic, {tier.name for tier in tiers}, DEFERRABLE):
        work = np.nan_to_num(_dense_series(series, start_s, end_s))
        load = np.zeros_like(work)
        if place in loads:
            load = _dense_series(loads[place], start_s, end_s)
        # Gaps count as the peak: an unobserved bin must not seem to have free capacity.
        peak = 0.0 if np.isnan(load).all() else np.nanmax(load)
        capacity_tps[place] = level_load(np.nan_to_num(load, nan=peak), work, bins)
    return capacity_tps


def _dense_series(series: DemandSeries, start_s: float, end_s: float) -> FloatArray:
    """Return the tokens/s of every bin in ``[start_s, end_s)``; NaN if not observed."""
    rates = np.full(round((end_s - start_s) / series.bin_s), np.nan)
    observed = series.window(start_s, end_s)
    first = round((observed.start_s - start_s) / series.bin_s)
    rates[first : first + observed.bins] = observed.rate()
    return rates


def level_load(load: FloatArray, work: FloatArray, bins: int) -> float:
    """Return the smallest constant capacity that covers ``load`` and serves ``work`` in time.

    All are tokens/s; ``load`` and ``work`` are ``[bin]``. Work must be served within ``bins`` bins
    of its arrival. The demand is assumed to repeat after the last bin.
    """
    # Bounds of the capacity, between which the search halves the range.
    low = float(max(load.max(), (load + work).mean()))  # below the mean, work would pile up
    high = float(load.max() + work.max())
    # The demand twice in a row: work that arrives late in the first half is done in the second.
    load, work = np.tile(load, 2), np.tile(work, 2)
    if not work.any() or _serves_in_time(low, load, work, bins):
        return low
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        if _serves_in_time(middle, load, work, bins):
            high = middle
        else:
            low = middle
    return high


def _serves_in_time(capacity: float, load: FloatArray, work: FloatArray, bins: int) -> bool:
    """Return whether ``capacity`` serves all load, and all work within ``bins`` bins."""
    arrived = np.cumsum(work)
    # Work that remains after each bin is the largest surplus of work over free capacity since any
    # earlier bin: the cumulative surplus less its minimum so far.
    surplus = np.append(0.0, np.cumsum(work - (capacity - load)))
    remaining = (surplus - np.minimum.accumulate(surplus))[1:]
    done = arrived - remaining
    due = arrived[: max(0, len(arrived) - bins)]  # work is due ``bins`` after its arrival
    done_when_due = done[len(arrived) - len(due) :]
    return bool(np.all(done_when_due >= due - 1e-9 * (1.0 + arrived[-1])))


def shifted_work(inputs: PlanInput, interactive_tps: FloatArray) -> Shift | None:
    """Return when and where to serve deferrable work at the least cost, as tokens by period.

    ``interactive_tps [period, model, region, bin]`` is served too. None if there is no deferrable
    work, or no fleet serves it in time.
    """
    work = _deferrable_work(inputs)
    if not len(work.tokens):
        return None
    horizon = Periods.of(inputs, Load(interactive_tps)).horizon_of_all()
    is_open = np.isfinite(inputs.hardware.latency_s)  # routes [home, serving]; inf is closed
    return cheapest_shift(horizon, work, is_open, **inputs.settings.solver_options)


def tps_of(tokens: FloatArray, interactive_tps: FloatArray, bin_s: float) -> FloatArray:
    """Return the tokens/s in each bin, ``[period, model, region, bin]``, of work in ``tokens``.

    ``tokens [period, model, region]`` first fill the bins of their period with the lowest
    interactive load. ``bin_s`` is the length of a bin in seconds.
    """
    tps = np.zeros_like(interactive_tps)
    for p, m, r in np.argwhere(tokens > 0):
        load = interactive_tps[p, m, r]
        level = filled_level(load, float(tokens[p, m, r]) / bin_s)
        tps[p, m, r] = np.maximum(level - load, 0.0)
    return tps


def on_arrival(inputs: PlanInput, shift: Shift) -> tuple[PlanInput, Load]:
    """Return (inputs, load) of a plan that serves the deferrable work of ``shift`` when it arrives.

    The plan reserves no GPUs.
    """
    settings = inputs.settings.with_objective(reserve=None)
    deferrable_tps = tps_of(shift.arrived, shift.other_tps, inputs.window.bin_s)
    return replace(inputs, settings=settings), Load(shift.other_tps + deferrable_tps)


def _deferrable_work(inputs: PlanInput) -> Work:
    """Return the expected deferrable work by model, region, tier and period of arrival.

    Work may be done in the period of its arrival, and in later ones of the window before its first
    request is urgent.
    """
    traffic, window = inputs.traffic, inputs.window
    urgent_after_s = {t.name: t.urgent_after_s for t in inputs.hardware.tiers if t.deferrable}
    groups = [(Group(name, frozenset((name,)), 1.0), MEAN) for name in urgent_after_s]
    forecasts = forecast_window(
        groups, traffic, window, method=inputs.settings.forecast.method, progress=silent,
        at_once=True,
    )  # fmt: skip
    periods = len(window.period_starts_s)
    tokens: list[float] = []
    indices: list[tuple[int, int, int, int]] = []  # model, region, first and last period
    for series in forecasts:
        model, region = traffic.model_and_region(series.key)
        # The first request of a period arrives as it begins. All its work is done before that one
        # becomes urgent.
        periods_to_wait = max(0, int(urgent_after_s[series.key.tier] // window.period_s) - 1)
        tokens_of_period = series.mean.reshape(periods, -1).sum(axis=1)  # by period of arrival
        for p in np.flatnonzero(tokens_of_period > 0).tolist():
            tokens.append(float(tokens_of_period[p]))
            indices.append((model, region, p, min(p + periods_to_wait, periods - 1)))
    columns = np.array(indices, np.int64).reshape(-1, 4).T
    return Work(np.array(tokens, np.float64), *columns)
