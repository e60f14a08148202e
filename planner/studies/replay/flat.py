"""Flat fleets of a study: as many instances as one says, and the fewest that meet every tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from planner.studies.progress import Progress, silent
from planner.studies.replay.smallest import Meets, fewest, trimmed
from planner.studies.replay.spare import with_spare
from planner.studies.values import Study
from simulation.arrays import BoolArray, IntArray
from simulation.cells import per_cell, simulate_cell
from simulation.fleet import Fleet
from simulation.metrics import tiers_met
from simulation.policies.flat import Flat
from simulation.recovery import BeyondRecovery, Recovery
from simulation.trace import Trace

# Whether a flat fleet's pools of a model ("": all of it) attain what is wanted by tier, on the
# model's requests in a study's window, with a seed, by counts of each cell.
Known = dict[tuple[Study, str, tuple[float, ...], int, bytes], bool]


def smallest_flat(
    study: Study,
    *others: Study,
    seed: int,
    progress: Progress = silent,
    goals: Sequence[Mapping[str, float]] = (),
    known: Known | None = None,
) -> IntArray:
    """The fewest instances per pool that, held all the time, meet every tier (X1) in the window of
    ``study``, and in those of ``others``, which are of the same hardware; ``goals`` is the
    attainment that is wanted by tier in each of them, where that is not the tier's own. What
    searches of the same windows found is ``known``.

    Models do not share instances, so each is first searched alone: bisection over its total, spread
    over pools as the flat fleet at peak is. Then single instances are taken out of the whole fleet,
    the dearest first, until none can go: tiers are counted over all models together (X4).
    Attainment need not be monotone in the total, so it is the smallest *found*. A model that
    cannot meet its tiers with all the GPUs there are gets as many as were tried last. What the
    scenario wants spare comes on top.
    """
    windows = (study, *others)
    known = {} if known is None else known
    base = np.max([study.pools(its_study.peak) for its_study in windows], axis=0)
    counts = np.zeros(len(study.hardware.pool_index), np.int64)
    names = [model.name for model in study.hardware.models]
    for m, name in enumerate(names):
        progress(0.8 * m / len(names), f"Searching the smallest flat fleet for {name}")
        of_model = np.array([place[0] == m for place in study.hardware.pool_index])
        requests = [its_study.trace.rows(its_study.trace.model == m) for its_study in windows]
        all_pools = study.fleet(base)
        fleet = Fleet(
            tiers=all_pools.tiers,
            regions=all_pools.regions,
            pools=tuple(pool for pool, its in zip(all_pools.pools, of_model, strict=True) if its),
            latency_s=all_pools.latency_s,
            routing=all_pools.routing,
        )

        alive = partial(progress, 0.8 * m / len(names), "")
        meets = _judge(windows, requests, fleet, goals, seed, alive, known, name)
        low = np.array([pool.minimum for pool in fleet.pools], np.int64)
        high = np.array([pool.maximum for pool in fleet.pools], np.int64)
        counts[of_model] = fewest(
            meets, base[of_model], low, _within_gpus(study, of_model, base, high)
        )
    all_pools = study.fleet(counts)
    least = np.array([pool.minimum for pool in all_pools.pools], np.int64)
    usd = np.array([pool.usd_per_gpu_hour * pool.gpus_per_instance for pool in all_pools.pools])
    traces = [its_study.trace for its_study in windows]
    meets = _judge(windows, traces, all_pools, goals, seed, partial(progress, 0.8, ""), known)
    return with_spare(windows, trimmed(meets, counts, least, -usd))


def holds(
    study: Study,
    counts: IntArray,
    goals: Mapping[str, float],
    seed: int,
    known: Known | None = None,
) -> bool:
    """Whether a flat fleet of ``counts`` ``[pools]`` attains ``goals`` of every tier."""
    fleet, known = study.fleet(counts), {} if known is None else known
    return _judge([study], [study.trace], fleet, [goals], seed, lambda: None, known)(counts)


def _aimed(fleet: Fleet, goals: Mapping[str, float]) -> Fleet:
    tiers = (replace(tier, attainment=goals[tier.name]) for tier in fleet.tiers)
    return replace(fleet, tiers=tuple(tiers))


def _judge(
    windows: Sequence[Study],
    requests: Sequence[Trace],
    fleet: Fleet,
    goals: Sequence[Mapping[str, float]],
    seed: int,
    alive: Callable[[], None],
    known: Known,
    model: str = "",
) -> Meets:
    """Whether a flat fleet, that of a ``model`` by itself where one is named, meets every tier on
    ``requests`` of each window; ``alive`` is a chance to cancel, ``known`` what was found out
    before."""

    cells = windows[0].cells
    fleets = [_aimed(fleet, shares) for shares in goals] or [fleet] * len(windows)
    # First those last missed: fewer replays.
    hardest = list(zip(windows, requests, fleets, strict=True))

    def met(study: Study, its: Trace, aimed: Fleet, counts: IntArray) -> bool:
        alive()
        duration_s = study.window.duration_s
        try:
            result = simulate_cell(
                its,
                aimed,
                Flat(counts),
                cells=cells,
                seed=seed,
                duration_s=duration_s,
                watch=Recovery(aimed.tiers, duration_s),
            )
        except BeyondRecovery:
            return False
        return all(tiers_met(result).values())

    def knows(study: Study, its: Trace, aimed: Fleet, counts: IntArray) -> bool:
        shares = tuple(tier.attainment for tier in aimed.tiers)
        key = study, model, shares, seed, per_cell(counts, cells).tobytes()
        if key not in known:
            known[key] = met(study, its, aimed, counts)
        return known[key]

    def meets(counts: IntArray) -> bool:
        missed = (i for i, case in enumerate(hardest) if not knows(*case, counts))
        first = next(missed, None)
        if first is not None:
            hardest.insert(0, hardest.pop(first))
        return first is None

    return meets


def _within_gpus(study: Study, of_model: BoolArray, base: IntArray, high: IntArray) -> IntArray:
    """Most instances a model may hold, other models keeping their share of ``base``."""
    out, types = high.copy(), study.hardware.types
    places = [place for place, its in zip(study.hardware.pool_index, of_model, strict=True) if its]
    for i, (m, r, g) in enumerate(places):
        others = sum(
            int(count) * study.hardware.profiles[other, g2].tp
            for (other, r2, g2), count in zip(study.hardware.pool_index, base, strict=True)
            if (r2, types[g2]) == (r, types[g]) and other != m
        )
        free = int(study.hardware.capacity_gpus[r, types[g]]) - others
        out[i] = max(0, min(int(high[i]), free // study.hardware.profiles[m, g].tp))
    return out
