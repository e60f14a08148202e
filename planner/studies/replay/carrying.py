"""What the instances that serve at each moment of a replay can carry within their limits, in the
unit of the demand, and whether that would do with one of them lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from planner.studies.plain import moments
from planner.studies.replay.spare import asked, carried, left
from planner.studies.values import Study
from simulation.arrays import IntArray
from simulation.results import PoolSeries

WHOLE = 1e-6  # of an instance: means over time are rounded


def serving(study: Study, series: PoolSeries, whence: Sequence[int | None]) -> IntArray:
    """Whole instances that serve in each interval, ``[t, l, r, g]``; ``whence`` is the pool of the
    study that each pool of the replay was cut from, None of one that serves nobody."""
    up = np.floor(series.ready + WHOLE).astype(np.int64)
    counts = np.zeros((up.shape[1], *study.hardware.minimum.shape), np.int64)
    for p, source in enumerate(whence):
        if source is None:
            continue
        m, r, g = study.hardware.pool_index[source]
        counts[:, m, r, g] += up[p]
    return counts


def survives(study: Study, series: PoolSeries, whence: Sequence[int | None]) -> float | None:
    """Share of the window's bins in which what is asked of every model would still be carried with
    what may be gone (``spare.left``); None where nothing is asked."""
    needed = asked(study)
    if not needed.any():
        return None
    remains = left(study, serving(study, series, whence))
    bins = len(needed)
    edges = np.minimum(np.arange(len(remains)) * series.interval_s // study.window.bin_s, bins - 1)
    holds = np.ones(bins, bool)
    for b in range(bins):
        of_bin = remains[edges == b]
        if len(of_bin):
            holds[b] = bool((of_bin.mean(axis=0) >= needed[b] * (1 - WHOLE)).all())
    return float(holds.mean())


def capacity_table(study: Study, series: PoolSeries, whence: Sequence[int | None]) -> pl.DataFrame:
    """Input tokens/s that each model's instances in each region carry together, from each moment
    at which it changes to the next."""
    tps = carried(study, serving(study, series, whence))
    frames = []
    hardware, start_s = study.hardware, study.window.start_s
    for m, r in dict.fromkeys((m, r) for m, r, _ in hardware.pool_index):
        line = tps[:, m, r]
        kept = np.r_[True, np.diff(line) != 0]
        kept[-1] = True
        after_s = series.interval_s * np.flatnonzero(kept)
        frames.append(
            pl.DataFrame(
                {
                    "time": moments(start_s, after_s.astype(np.float64)),
                    "model": hardware.models[m].name,
                    "region": hardware.regions[r].name,
                    "capacity_tps": line[kept],
                }
            )
        )
    return pl.concat(frames)
