"""Sample the lengths and arrivals of the requests before each scaling decision.

A decision knows no later requests.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.domain.random_streams import Stream, generator
from planner.domain.traffic.lengths import (
    SAMPLED_REQUESTS,
    DrawnLengths,
    Lengths,
    LengthSample,
    mix_lengths,
)
from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.traffic import Traffic, build_traffic
from planner.domain.traffic.window import DAY_S, Window, resolve_window
from planner.errors import ScenarioError
from planner.inputs.scenario.settings import Settings
from simulation.arrays import BoolArray, FloatArray, IntArray, row_slices
from simulation.arrival_pattern import ArrivalPattern, pattern_of
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Burstiness
from simulation.trace import CachedTokens, PrefixBlocks

MIN_REQUESTS = 200  # smallest number of requests in a sample of lengths
MIN_RELATIVE_CHANGE = (
    0.1  # smaller relative changes of a mean length do not justify a new size (assumed)
)
MIN_STANDARD_ERRORS = 4.0  # smaller changes of a mean, in standard errors, can be chance
POISSON = 1.0  # burstiness
MIN_ARRIVALS = (
    5_000  # requests that show bursts; with fewer on the last day, all earlier ones count
)
MAX_DRAWN_ARRIVALS = 5_000_000  # arrivals drawn from counts, to see their pattern


@dataclass(frozen=True, slots=True, eq=False)
class KnownLengths:
    """The samples of request lengths that the decisions of a window can use.

    ``samples[sample_of_period[p]][m]`` are the lengths of model ``m`` as known at the decision for
    period ``p``. The first sample belongs to the first decision.
    """

    samples: tuple[tuple[Lengths, ...], ...]
    sample_of_period: IntArray
    notes: tuple[str, ...] = ()
    # [sample][model] prompts of which a prefix cache may hold a part
    shared: tuple[tuple[SharedPrompts | None, ...], ...] = ()
    # [model, tier] whether the model has traffic of the tier; None: of all tiers
    tiers_in_use: BoolArray | None = None
    arrivals: tuple[Burstiness, ...] = ()  # [model] known at the first decision; empty: Poisson


def known_lengths(traffic: Traffic, window: Window, seed: int) -> KnownLengths:
    """Return the request lengths known at each decision of ``window``, from earlier requests.

    A model without requests before the first decision has the lengths of all the traffic, and a
    note says so.
    """
    rng, first_decision_s = generator(seed, Stream.KNOWN), window.first_decision_s
    samples, sample_of_period = _samples_by_model(traffic, window, rng)
    # Both by set of samples, and then by model.
    lengths: list[tuple[Lengths, ...]] = []
    shared: list[tuple[SharedPrompts | None, ...]] = []
    for by_model in samples:
        lengths.append(tuple(sample.lengths for sample in by_model))
        prompts = [_known_prompts(traffic, m, window, s) for m, s in enumerate(by_model)]
        shared.append(tuple(prompts))
    notes = []
    for model, first, of_all in zip(traffic.models, lengths[0], traffic.lengths, strict=True):
        if first is of_all:  # the same object: no request was known
            notes.append(
                f"No request of {model} is known before the first decision. Its lengths are those "
                "of all traffic, including the window."
            )
    return KnownLengths(
        samples=tuple(lengths),
        sample_of_period=sample_of_period,
        notes=tuple(notes),
        shared=tuple(shared),
        tiers_in_use=requested_tiers(traffic, first_decision_s),
        arrivals=arrival_patterns(traffic, first_decision_s, seed),
    )


def _samples_by_model(
    traffic: Traffic, window: Window, rng: np.random.Generator
) -> tuple[list[list[LengthSample]], IntArray]:
    """Return (sets, set of each period): the samples ``[set][model]`` that periods use.

    A set has one sample of each model. No two sets are equal. The set of a period is an index.
    """
    samples_by_model, sample_of_period = [], []  # both by model
    for m in range(len(traffic.models)):
        model_samples, model_sample_of_period = _samples_of_model(traffic, m, window, rng)
        samples_by_model.append(model_samples)
        sample_of_period.append(model_sample_of_period)
    # For each period, the index of every model's sample.
    indices_of_period = [tuple(row) for row in np.stack(sample_of_period, axis=1).tolist()]
    indices_of_set = list(dict.fromkeys(indices_of_period))
    sets = [
        [samples[i] for samples, i in zip(samples_by_model, indices, strict=True)]
        for indices in indices_of_set
    ]
    set_of_period = [indices_of_set.index(indices) for indices in indices_of_period]
    return sets, np.array(set_of_period, np.int64)


def traffic_with_known_lengths(traffic: Traffic, known: KnownLengths) -> Traffic:
    """Return the traffic with the lengths, arrivals and tiers that the first decision knows."""
    return replace(
        traffic,
        lengths=known.samples[0],
        shared=known.shared[0],
        tiers_in_use=known.tiers_in_use,
        arrivals=known.arrivals,
        notes=traffic.notes + known.notes,
    )


def requested_tiers(traffic: Traffic, before_s: float) -> BoolArray:
    """Return which tiers each model has requests of, as a mask ``[model, tier]``.

    Logged requests count if they arrived before ``before_s`` (epoch s). A source of counts has
    requests of every tier that gets a share of it.
    """
    has_tier = np.zeros((len(traffic.models), len(traffic.tiers)), np.bool_)
    trace = traffic.measured
    tiers = len(traffic.tiers)
    for rows in row_slices(trace.before(before_s)):
        codes = trace.model[rows].astype(np.int64) * tiers + trace.tier[rows]
        has_tier |= np.bincount(codes, minlength=has_tier.size).reshape(has_tier.shape) > 0
    for source in traffic.binned:
        has_tier[source.model] |= source.weights.any(axis=0)
    return has_tier


def _known_prompts(
    traffic: Traffic, m: int, window: Window, sample: LengthSample
) -> SharedPrompts | None:
    """Return the prompts of model ``m``, with their shared prefixes, that a plan knows.

    They are those of its last requests before the first decision, or of the whole trace if there
    were none. If the logs have no prompt blocks, they are those of ``sample``, with cached tokens.
    None: nothing is known of prefixes.
    """
    trace = traffic.measured
    if not isinstance(trace.blocks, PrefixBlocks):
        return sample.shared_prompts
    of_model = np.flatnonzero(trace.model == m)
    is_before = trace.arrival_s[of_model] + trace.start_s < window.first_decision_s
    rows = of_model[is_before] if is_before.any() else of_model
    rows = rows[-SAMPLED_REQUESTS:]
    if not len(rows):
        return None
    blocks = trace.blocks.rows(rows)
    return SharedPrompts(trace.input_tokens[rows], trace.output_tokens[rows], blocks)


def traffic_before_plan(settings: Settings, traces: dict[str, StoredTrace]) -> Traffic:
    """Return the scenario's traffic with the request lengths that its plan would start with.

    If the traffic is too short for a plan, the lengths are those of all the traffic.
    """
    traffic = build_traffic(settings.traffic, traces)
    try:
        window = resolve_window(settings.window, traffic.demand, traffic.clock)
    except ScenarioError:
        arrivals = arrival_patterns(traffic, np.inf, settings.seed)
        return replace(traffic, tiers_in_use=requested_tiers(traffic, np.inf), arrivals=arrivals)
    return traffic_with_known_lengths(traffic, known_lengths(traffic, window, settings.seed))


def _samples_of_model(
    traffic: Traffic, m: int, window: Window, rng: np.random.Generator
) -> tuple[list[LengthSample], IntArray]:
    """Return samples of the request lengths of model ``m``, and the index of each period's sample.

    The first sample is ``_first_sample``. If the lengths right before a later decision differ from
    the current sample (``lengths_differ``), its period uses an earlier similar sample, or else a
    new one.
    """
    samples = [_first_sample(traffic, m, window.first_decision_s, rng)]
    sample_of_period = []
    current, last_decision_s = 0, -np.inf
    for decision_s in window.origins_s.tolist():
        if decision_s != last_decision_s:  # else ahead of the trace: nothing new is known
            recent = observed_lengths(traffic, m, decision_s - window.period_s, decision_s, rng)
            current = _index_of_similar(samples, current, recent)  # may append to ``samples``
        last_decision_s = decision_s
        sample_of_period.append(current)
    return samples, np.array(sample_of_period, np.int64)


def _first_sample(
    traffic: Traffic, m: int, before_s: float, rng: np.random.Generator
) -> LengthSample:
    """Return a sample of the lengths of model ``m`` on the day before ``before_s`` (epoch s).

    If that day has too few requests, it is of all earlier requests. Without such, of all traffic.
    """
    sample = observed_lengths(traffic, m, before_s - DAY_S, before_s, rng)
    if sample.requests < MIN_REQUESTS:
        sample = observed_lengths(traffic, m, traffic.demand.start_s, before_s, rng)
    return sample if sample.requests else sample_of_model(traffic, m)


def _index_of_similar(samples: list[LengthSample], current: int, recent: LengthSample) -> int:
    """Return the index of a sample like ``recent``: ``current`` if possible, else any.

    If none is similar, append ``recent``. If it has too few requests, return ``current``.
    """
    if recent.requests < MIN_REQUESTS or not lengths_differ(samples[current], recent):
        return current
    for index, known in enumerate(samples):
        if not lengths_differ(known, recent):
            return index
    samples.append(recent)
    return len(samples) - 1


def sample_of_model(traffic: Traffic, m: int) -> LengthSample:
    """Return a sample of all lengths of model ``m`` in ``traffic``."""
    shared = traffic.shared[m] if traffic.shared else None
    cached = shared.blocks if shared and isinstance(shared.blocks, CachedTokens) else None
    return LengthSample(traffic.lengths[m], 0.0, cached)


def observed_lengths(
    traffic: Traffic, m: int, start_s: float, end_s: float, rng: np.random.Generator
) -> LengthSample:
    """Return a sample of the request lengths of model ``m`` in ``[start_s, end_s)`` (epoch s).

    From sources of counts, only bins that lie entirely within that time are used.
    """
    trace = traffic.measured
    first, last = trace.before(start_s), trace.before(end_s)
    rows = first + np.flatnonzero(trace.model[first:last] == m)
    drawn = []
    for source in traffic.binned:
        bins = source.bins_between(start_s, end_s, whole=True)
        count = float(np.nansum(source.requests()[bins]) * source.weights.sum())
        if source.model == m and count > 0:
            drawn.append(DrawnLengths(count, source.lengths(bins), source.cached_share))
    return mix_lengths(trace, rows, drawn, rng)


def lengths_differ(known: LengthSample, recent: LengthSample) -> bool:
    """Return whether mean lengths have changed from ``known`` to ``recent`` requests.

    These are the means of input, output and uncached input tokens. One of them must change by more
    than both the share ``MIN_RELATIVE_CHANGE`` of the mean and ``MIN_STANDARD_ERRORS`` standard
    errors.
    """
    known_columns = (*known.lengths, known.prefill)
    recent_columns = (*recent.lengths, recent.prefill)
    for earlier, later in zip(known_columns, recent_columns, strict=True):
        before, now = float(earlier.mean()), float(later.mean())
        standard_error = float(later.std()) / min(recent.requests, len(later)) ** 0.5
        if abs(now - before) > max(
            MIN_RELATIVE_CHANGE * before, MIN_STANDARD_ERRORS * standard_error
        ):
            return True
    return False


def arrival_patterns(traffic: Traffic, before_s: float, seed: int) -> tuple[Burstiness, ...]:
    """Return the arrival pattern of each model's interactive requests, as known at ``before_s``.

    It is that of the day before. If that day has fewer than MIN_ARRIVALS arrivals, it is that of
    all earlier requests, or of all the traffic. It is Poisson if the data do not show bursts within
    a bin. ``before_s`` is in epoch seconds.
    """
    rng = generator(seed, Stream.ARRIVALS)
    return tuple(_pattern_of_model(traffic, m, before_s, rng) for m in range(len(traffic.models)))


def _pattern_of_model(
    traffic: Traffic, m: int, before_s: float, rng: np.random.Generator
) -> Burstiness:
    """Return the arrival pattern of model ``m``'s interactive requests before ``before_s``.

    It is that of the day before, of all requests before, or of all traffic: the first of these with
    MIN_ARRIVALS arrivals, else the longest with a pattern. It is POISSON if none has one.
    """
    if not _shows_bursts(traffic, m):
        return POISSON
    begin_s, end_s = traffic.demand.start_s, traffic.demand.end_s
    pattern: ArrivalPattern | None = None
    day_before, all_before = (before_s - DAY_S, before_s), (begin_s, before_s)
    # Use the first span with enough arrivals, or else the longest with a pattern.
    for start, end in (day_before, all_before, (begin_s, end_s)):
        arrival, regions = _arrivals(traffic, m, max(start, begin_s), min(end, end_s), rng)
        pattern_in_span = pattern_of(arrival, regions, traffic.demand.bin_s, begin_s)
        if pattern_in_span is None:
            continue
        pattern = pattern_in_span
        if len(pattern.place) >= MIN_ARRIVALS:
            break
    return POISSON if pattern is None else pattern


def _shows_bursts(traffic: Traffic, m: int) -> bool:
    """Return whether the data show how a model's requests arrive within a bin of demand.

    A log of requests shows it. Counts show it if their bins are narrower than those of the demand,
    or if the scenario states a dispersion.
    """
    return bool((traffic.measured.model == m).any()) or any(
        source.dispersion != 1.0 or source.columns.bin_s < traffic.demand.bin_s * (1 - 1e-9)
        for source in traffic.binned
        if source.model == m
    )


def _arrivals(
    traffic: Traffic, m: int, start_s: float, end_s: float, rng: np.random.Generator
) -> tuple[FloatArray, IntArray]:
    """Return (arrivals in epoch s, region indices) of model ``m``'s interactive requests.

    They arrive in ``[start_s, end_s)``. Arrivals of sources of counts are drawn at random.
    """
    interactive = [t for t, tier in enumerate(traffic.tiers) if tier not in traffic.deferrable]
    trace = traffic.measured
    rows = slice(trace.before(start_s), trace.before(end_s))
    selected = (trace.model[rows] == m) & np.isin(trace.tier[rows], interactive)
    arrivals = [trace.arrival_s[rows][selected] + trace.start_s]
    regions = [trace.region[rows][selected].astype(np.int64)]
    for source in traffic.binned:
        if source.model != m or start_s >= end_s:
            continue
        # Draw at most about MAX_DRAWN_ARRIVALS requests: the last ones.
        expected = source.expected_requests(start_s, end_s)
        share = min(1.0, MAX_DRAWN_ARRIVALS / max(expected, 1.0))
        from_s = max(start_s, end_s - (end_s - start_s) * share)
        for region, tier, arrival in source.arrivals(from_s, end_s, rng):
            if tier in interactive:
                inside = arrival[(arrival >= from_s) & (arrival < end_s)]
                arrivals.append(inside)
                regions.append(np.full(len(inside), region, np.int64))
    return np.concatenate(arrivals), np.concatenate(regions)
