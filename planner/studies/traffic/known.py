"""How long requests are, as far as a decision can know: by those that came before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.errors import ScenarioError
from planner.scenario.settings import Settings
from planner.studies.random_streams import Stream, generator
from planner.studies.traffic.lengths import SAMPLE, Lengths, mixed
from planner.studies.traffic.sources import StoredTrace
from planner.studies.traffic.traffic import Traffic, build_traffic
from planner.studies.traffic.window import DAY_S, Window, resolve_window
from simulation.arrays import BoolArray, IntArray, pieces
from simulation.sizing.trial import SharedPrompts

LEAST = 200  # requests that say anything of their lengths
DRIFT = 0.1  # of a mean length: less is not worth another size (assumed)
ERRORS = 4.0  # standard errors of a mean: less may be chance


@dataclass(frozen=True, slots=True, eq=False)
class KnownLengths:
    """What each decision of a window knows: ``samples[at[p]]`` has the lengths of every model at
    the decision for period ``p``. The first are those of the first decision."""

    samples: tuple[tuple[Lengths, ...], ...]
    at: IntArray  # [p]
    notes: tuple[str, ...] = ()
    shared: tuple[SharedPrompts | None, ...] = ()  # [l] at the first decision
    asked: BoolArray | None = None  # [l, tiers] whether it knows traffic of a tier


def known_lengths(traffic: Traffic, window: Window, seed: int) -> KnownLengths:
    """Lengths at each decision of ``window``, from requests that came before it.

    At first those of the day before (of all that came, where that has too few). Later decisions
    look at the period before them: where its mean input or output differs by more than a tenth, and
    by more than chance, its requests are what counts from then on, or those of an earlier period
    that were as long. A model of which nothing came before the first decision is sized by the
    requests of all the traffic, with a note.
    """
    rng = generator(seed, Stream.KNOWN)
    by_model = [_of_model(traffic, m, window, rng) for m in range(len(traffic.models))]
    chosen = np.stack([which for _, which in by_model], axis=1)  # [p, l]
    rows, first, which = np.unique(chosen, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    samples = tuple(
        tuple(samples[s] for (samples, _), s in zip(by_model, rows[row], strict=True))
        for row in order
    )
    notes = tuple(
        f"No request of {model} came before the first decision: its lengths are those of all the "
        "traffic, the window's too."
        for m, (model, (kept, _)) in enumerate(zip(traffic.models, by_model, strict=True))
        if kept[0] is traffic.lengths[m]
    )
    shared = tuple(_shared(traffic, m, window) for m in range(len(traffic.models)))
    has_tier = asked_by(traffic, float(window.origins_s[0]))
    return KnownLengths(samples, np.argsort(order)[which.ravel()], notes, shared, has_tier)


def foreseen(traffic: Traffic, known: KnownLengths) -> Traffic:
    """The traffic with the lengths that its window's first decision knows."""
    return replace(
        traffic,
        lengths=known.samples[0],
        shared=known.shared,
        asked=known.asked,
        notes=traffic.notes + known.notes,
    )


def asked_by(traffic: Traffic, before_s: float) -> BoolArray:
    """Whether a model has traffic of a tier, ``[l, tiers]``: requests that came before a time, or a
    source of counts that says so."""
    has_tier = np.zeros((len(traffic.models), len(traffic.tiers)), np.bool_)
    trace = traffic.measured
    tiers = len(traffic.tiers)
    for rows in pieces(trace.before(before_s)):
        codes = trace.model[rows].astype(np.int64) * tiers + trace.tier[rows]
        has_tier |= np.bincount(codes, minlength=has_tier.size).reshape(has_tier.shape) > 0
    for source in traffic.binned:
        has_tier[source.model] |= source.cells.any(axis=0)
    return has_tier


def _shared(traffic: Traffic, m: int, window: Window) -> SharedPrompts | None:
    """A model's last requests before the first decision, with what their prompts share; of all the
    traffic, as lengths are, where too few came before. None where no trace tells."""
    trace = traffic.measured
    if trace.blocks is None:
        return None
    of_model = np.flatnonzero(trace.model == m)
    before = of_model[trace.arrival_s[of_model] + trace.start_s < float(window.origins_s[0])]
    rows = (before if len(before) >= LEAST else of_model)[-SAMPLE:]
    if not len(rows):
        return None
    blocks = trace.blocks.rows(rows)
    return SharedPrompts(trace.input_tokens[rows], trace.output_tokens[rows], blocks)


def known_traffic(settings: Settings, traces: dict[str, StoredTrace]) -> Traffic:
    """The traffic with the lengths that a plan of the scenario would begin with, so that a size by
    itself and a plan's are the same; of all the traffic where that is too short for a plan."""
    traffic = build_traffic(settings.traffic, traces)
    try:
        window = resolve_window(settings.window, traffic.demand, traffic.clock)
    except ScenarioError:
        return replace(traffic, asked=asked_by(traffic, np.inf))
    return foreseen(traffic, known_lengths(traffic, window, settings.seed))


def _of_model(
    traffic: Traffic, m: int, window: Window, rng: np.random.Generator
) -> tuple[list[Lengths], IntArray]:
    """Samples, and the one of each period ``[p]``."""
    origins = window.origins_s
    begin = float(origins[0])
    sample, count = observed(traffic, m, begin - DAY_S, begin, rng)
    if count < LEAST:
        sample, count = observed(traffic, m, traffic.demand.start_s, begin, rng)
    samples = [sample if count else traffic.lengths[m]]
    sample_of = np.zeros(len(origins), np.int64)
    now = 0
    for p, origin in enumerate(origins.tolist()):
        if p and origin == origins[p - 1]:  # ahead of the trace: nothing new is known
            sample_of[p] = now
            continue
        recent, count = observed(traffic, m, origin - window.period_s, origin, rng)
        if count >= LEAST and differ(samples[now], recent, count):
            alike = [s for s, known in enumerate(samples) if not differ(known, recent, count)]
            now = alike[0] if alike else len(samples)
            if not alike:
                samples.append(recent)
        sample_of[p] = now
    return samples, sample_of


def observed(
    traffic: Traffic, m: int, start_s: float, end_s: float, rng: np.random.Generator
) -> tuple[Lengths, float]:
    """A sample of the lengths of a model's requests in ``[start_s, end_s)``, and how many came."""
    trace = traffic.measured
    first, last = trace.before(start_s), trace.before(end_s)
    rows = first + np.flatnonzero(trace.model[first:last] == m)
    others = []
    for source in traffic.binned:
        bins = source.whole(start_s, end_s)
        count = float(np.nansum(source.requests()[bins]) * source.cells.sum())
        if source.model == m and count > 0:
            others.append((count, source.lengths(bins)))
    return mixed(trace, rows, others, rng)


def differ(known: Lengths, recent: Lengths, count: float) -> bool:
    """Whether the mean input or output of ``count`` recent requests is another one: by more than
    a tenth, and by more than chance."""
    for earlier, later in zip(known, recent, strict=True):
        before, now = float(earlier.mean()), float(later.mean())
        chance = ERRORS * float(later.std()) / min(count, len(later)) ** 0.5
        if abs(now - before) > max(DRIFT * before, chance):
            return True
    return False
