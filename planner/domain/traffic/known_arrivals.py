"""Find how the requests of each model arrive within a bin, from those known before a window."""

import numpy as np

from planner.domain.random_streams import Stream, generator
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import DAY_S
from simulation.arrays import FloatArray, IntArray
from simulation.arrival_pattern import ArrivalPattern, pattern_of
from simulation.sizing.workload import Burstiness

POISSON = 1.0
ENOUGH = 5_000  # requests that show bursts; with fewer on the last day, all earlier ones count
MOST_DRAWN = 5_000_000  # arrivals drawn from counts, to see their pattern


def known_arrivals(traffic: Traffic, before_s: float, seed: int) -> tuple[Burstiness, ...]:
    """Return the arrival pattern of each model's interactive requests, as known at ``before_s``.

    It is that of the day before, or of all earlier requests if that day has few, or of all the
    traffic if there are none. It is Poisson if the data do not show bursts within a bin.
    ``before_s`` is in epoch seconds.
    """
    rng = generator(seed, Stream.ARRIVALS)
    return tuple(_pattern_of_model(traffic, m, before_s, rng) for m in range(len(traffic.models)))


def _pattern_of_model(
    traffic: Traffic, m: int, before_s: float, rng: np.random.Generator
) -> Burstiness:
    """Return the arrival pattern of model ``m``: of the day before, else of a longer time."""
    if not _bursts_known(traffic, m):
        return POISSON
    begin_s, end_s = traffic.demand.start_s, traffic.demand.end_s
    pattern: ArrivalPattern | None = None  # of the longest time so far
    # Stop at the first span with enough arrivals: the day before, all before, all of the traffic.
    for start, end in ((before_s - DAY_S, before_s), (begin_s, before_s), (begin_s, end_s)):
        arrival, series = _arrivals(traffic, m, max(start, begin_s), min(end, end_s), rng)
        in_span = pattern_of(arrival, series, traffic.demand.bin_s, begin_s)
        pattern = in_span or pattern
        if in_span is not None and len(in_span.place) >= ENOUGH:
            break
    return POISSON if pattern is None else pattern


def _bursts_known(traffic: Traffic, m: int) -> bool:
    """Return whether the data show how a model's requests arrive within a bin of demand.

    A log shows it. Counts do if their bins are narrower, or if the scenario states a dispersion.
    """
    return bool((traffic.measured.model == m).any()) or any(
        source.dispersion != 1.0 or source.columns.bin_s < traffic.demand.bin_s * (1 - 1e-9)
        for source in traffic.binned
        if source.model == m
    )


def _arrivals(
    traffic: Traffic, m: int, start_s: float, end_s: float, rng: np.random.Generator
) -> tuple[FloatArray, IntArray]:
    """Return (arrivals in epoch s, regions) of model ``m``'s interactive requests.

    They are those in ``[start_s, end_s)``. Arrivals of sources of counts are drawn.
    """
    interactive = [t for t, tier in enumerate(traffic.tiers) if tier not in traffic.deferrable]
    trace = traffic.measured
    rows = slice(trace.before(start_s), trace.before(end_s))
    selected = (trace.model[rows] == m) & np.isin(trace.tier[rows], interactive)
    arrivals = [trace.arrival_s[rows][selected] + trace.start_s]
    regions = [trace.region[rows][selected].astype(np.int64)]
    for source in traffic.binned:
        if source.model != m or end_s <= start_s:
            continue
        expected = source.expected(start_s, end_s)
        # Draw at most about MOST_DRAWN requests: the last ones of the span.
        share = min(1.0, MOST_DRAWN / max(expected, 1.0))
        drawn_from_s = max(start_s, end_s - (end_s - start_s) * share)
        for region, tier, arrival in source.arrivals(drawn_from_s, end_s, rng):
            if tier in interactive:
                inside = arrival[(arrival >= drawn_from_s) & (arrival < end_s)]
                arrivals.append(inside)
                regions.append(np.full(len(inside), region, np.int64))
    return np.concatenate(arrivals), np.concatenate(regions)
