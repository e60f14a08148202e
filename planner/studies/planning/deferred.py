"""Room for work that may wait (NIW): how much of it a plan must serve in each period, so that none
is left when it becomes urgent (methods.md E6, and SageServe's future work: a continuum of SLAs).

Every request's work is spread evenly over the time until it becomes urgent
(``Tier.urgent_after_s``, before its deadline). Within a period it first fills what interactive load
leaves below its peak, like water; what fits there beyond what must be done is done too, since those
instances are up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.demand import DemandSeries
from planner.studies.planning.inputs import PlanInput
from planner.studies.traffic.groups import DEFERRABLE, by_model_and_region, interactive
from simulation.arrays import FloatArray
from simulation.fleet import Tier

HALVINGS = 40  # of the range in which a level is searched


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Deferrable input tokens by when they come and become urgent, in order of the latter."""

    arrival_s: FloatArray
    urgent_s: FloatArray
    tokens: FloatArray

    @classmethod
    def of(cls, parts: list[tuple[FloatArray, float, FloatArray]]) -> Work:
        """``parts`` are arrivals, the seconds until they are urgent, and tokens."""
        arrival = np.concatenate([arrival for arrival, _, _ in parts])
        urgent = np.concatenate([arrival + age for arrival, age, _ in parts])
        tokens = np.concatenate([tokens for _, _, tokens in parts])
        order = np.argsort(urgent, kind="stable")
        return cls(arrival[order], urgent[order], tokens[order])

    def less(self, done: float) -> Work:
        """Without the first ``done`` tokens."""
        left = np.clip(np.cumsum(self.tokens) - done, 0.0, self.tokens)
        return Work(self.arrival_s, self.urgent_s, left)

    def needed(self, start_s: float, end_s: float) -> float:
        """Tokens to be done between two moments, at an even pace until each becomes urgent."""
        begin = np.maximum(self.arrival_s, start_s)
        left = self.urgent_s - begin
        share = np.where(left > 0, (end_s - begin) / np.where(left > 0, left, 1.0), 1.0)
        return float(self.tokens @ np.clip(share, 0.0, 1.0))


def deferred_tps(inputs: PlanInput, interactive_tps: FloatArray, *, at_once: bool) -> FloatArray:
    """Deferrable input tokens/s to plan for beside ``interactive_tps``, both ``[p, l, r, w]``.

    Known are what came before each decision, or ``at_once`` before the first, and its rate in the
    period before, which stands for what is yet to come (of traffic that the scenario describes,
    what it says).
    """
    window = inputs.window
    origins = np.minimum(window.origins_s, window.origins_s[0] if at_once else np.inf)
    out = np.zeros_like(interactive_tps)
    series: dict[tuple[int, int], list[tuple[Tier, DemandSeries]]] = {}
    for tier in inputs.hardware.tiers:
        if tier.deferrable:
            for place, demand in by_model_and_region(inputs.traffic, {tier.name}, DEFERRABLE):
                series.setdefault(place, []).append((tier, demand))
    for (m, r), ours in series.items():
        done = 0.0
        for p, start_s in enumerate(window.period_starts_s):
            end_s = start_s + window.period_s
            parts = [_known(inputs, tier, demand, origins[p], end_s) for tier, demand in ours]
            work = Work.of(parts).less(done)
            needed = work.needed(start_s, end_s) / window.bin_s
            load = interactive_tps[p, m, r]
            out[p, m, r] = np.maximum(level(load, needed) - load, 0.0)
            room = float((load.max() - load).sum())
            done += min(float(work.tokens.sum()), max(needed, room) * window.bin_s)
    return out


def _known(
    inputs: PlanInput, tier: Tier, series: DemandSeries, origin_s: float, end_s: float
) -> tuple[FloatArray, float, FloatArray]:
    """What comes from the window's start to ``end_s`` as known at ``origin_s``."""
    window = inputs.window
    bins = round((end_s - window.start_s) / window.bin_s)
    edges = np.asarray(window.start_s + window.bin_s * np.arange(bins), np.float64)
    described = inputs.traffic.described(
        series.key.model, series.key.region, {tier.name}, series.unit, window
    )
    if described is None:
        rate = _rate(series, origin_s - window.period_s, origin_s)
        described = np.full(bins, rate * window.bin_s)
    tokens = described[:bins] * window.grown[:bins]
    seen = series.window(window.start_s, origin_s)
    if seen.bins:
        first = round((seen.start_s - window.start_s) / window.bin_s)
        tokens[:first] = 0.0
        tokens[first : first + seen.bins] = np.nan_to_num(seen.values)
    return edges, tier.urgent_after_s, np.asarray(tokens, np.float64)


def _rate(series: DemandSeries, start_s: float, end_s: float) -> float:
    """Mean tokens/s of what was observed."""
    rate = series.window(start_s, end_s).rate()
    return float(np.nanmean(rate)) if np.any(~np.isnan(rate)) else 0.0


def level(load: FloatArray, amount: float) -> float:
    """The level up to which ``amount``, in units of ``load`` times bins, fills ``load`` ``[w]``: it
    lies in the bins below it, as water."""
    heights = np.sort(load)
    levels = (amount + np.cumsum(heights)) / np.arange(1, len(heights) + 1)
    above = np.append(heights[1:], np.inf)
    return float(levels[np.argmax(levels <= above)])


def flat_tps(inputs: PlanInput, start_s: float, end_s: float) -> FloatArray:
    """Input tokens/s that a flat fleet must carry to do what may wait in a stretch of time beside
    its interactive load, before it is urgent, ``[l, r]``; 0 where nothing may."""
    hardware, traffic, bin_s = inputs.hardware, inputs.traffic, inputs.window.bin_s
    out = np.zeros((len(traffic.models), len(traffic.regions)))
    tiers = [tier for tier in hardware.tiers if tier.deferrable]
    if not tiers:
        return out
    loads = dict(by_model_and_region(traffic, interactive(hardware)))
    soonest_s = min(tier.urgent_after_s for tier in tiers)
    for (m, r), series in by_model_and_region(traffic, {tier.name for tier in tiers}, DEFERRABLE):
        work = np.nan_to_num(_dense(series, start_s, end_s))
        load = _dense(loads[m, r], start_s, end_s) if (m, r) in loads else np.zeros(len(work))
        most = np.nanmax(load) if np.any(~np.isnan(load)) else 0.0  # no room where nobody looked
        out[m, r] = flat_level(np.nan_to_num(load, nan=most), work, int(soonest_s // bin_s))
    return out


def _dense(series: DemandSeries, start_s: float, end_s: float) -> FloatArray:
    """Tokens/s in every bin of a stretch; NaN where they were not observed."""
    out = np.full(round((end_s - start_s) / series.bin_s), np.nan)
    seen = series.window(start_s, end_s)
    first = round((seen.start_s - start_s) / series.bin_s)
    out[first : first + seen.bins] = seen.rate()
    return out


def flat_level(load: FloatArray, work: FloatArray, bins: int) -> float:
    """The least that a flat fleet must carry, so that it covers ``load`` ``[w]`` and does all of
    ``work`` ``[w]`` within so many ``bins`` of its arrival, on days that are all alike."""
    low = float(max(load.max(), (load + work).mean()))  # at least what comes, day by day
    high = float(load.max() + work.max())
    load, work = np.tile(load, 2), np.tile(work, 2)
    come = np.cumsum(work)

    def enough(carried: float) -> bool:
        # What is left after each bin: the largest of what came since any of them, less the room.
        surplus = np.append(0.0, np.cumsum(work - (carried - load)))
        left = (surplus - np.minimum.accumulate(surplus))[1:]
        done = come - left
        due = come[: max(0, len(come) - bins)]
        return bool(np.all(done[len(come) - len(due) :] >= due - 1e-9 * (1.0 + come[-1])))

    if not work.any() or enough(low):
        return low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
