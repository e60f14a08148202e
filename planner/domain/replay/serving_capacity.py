"""Compute the capacity of the replicas that serve at each moment of a replay.

The capacity is what they sustain within their limits, in the unit of the demand. It is also
checked against the loss of a replica.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from planner.domain.replay.replica_loss import capacity_after_loss, capacity_of, interactive_demand
from planner.domain.serialise import moments
from planner.domain.study import Study
from simulation.arrays import IntArray
from simulation.results import PoolSeries

WHOLE = 1e-6  # share of a replica: tolerance for rounding of means over time


def serving(study: Study, series: PoolSeries, source_pools: Sequence[int | None]) -> IntArray:
    """Return the number of serving replicas in each interval, ``[t, l, r, g]``.

    ``source_pools`` is the index of the study's pool that each replayed pool came from. None marks
    a pool that serves no requests.
    """
    up = np.floor(series.ready + WHOLE).astype(np.int64)
    counts = np.zeros((up.shape[1], *study.hardware.minimum.shape), np.int64)
    for p, source in enumerate(source_pools):
        if source is None:
            continue
        m, r, g = study.hardware.pool_index[source]
        counts[:, m, r, g] += up[p]
    return counts


def survives(study: Study, series: PoolSeries, source_pools: Sequence[int | None]) -> float | None:
    """Return the share of the window's bins whose demand could be served after a replica loss.

    The losses are those of ``capacity_after_loss``. Return None if there is no demand.
    """
    needed = interactive_demand(study)
    if not needed.any():
        return None
    remains = capacity_after_loss(study, serving(study, series, source_pools))
    bins = len(needed)
    bin_of = np.minimum(np.arange(len(remains)) * series.interval_s // study.window.bin_s, bins - 1)
    served = np.ones(bins, bool)
    for b in range(bins):
        of_bin = remains[bin_of == b]
        if len(of_bin):
            served[b] = bool((of_bin.mean(axis=0) >= needed[b] * (1 - WHOLE)).all())
    return float(served.mean())


def survives_static(study: Study, counts: IntArray) -> float | None:
    """Return ``survives`` for a static fleet of ``counts [pools]``."""
    needed = interactive_demand(study)
    if not needed.any():
        return None
    fleet = np.zeros((1, *study.hardware.minimum.shape), np.int64)
    fleet[(0, *np.array(study.hardware.pool_index).T)] = counts
    return float(
        (capacity_after_loss(study, fleet) >= needed * (1 - WHOLE)).all(axis=(1, 2)).mean()
    )


def capacity_table(
    study: Study, series: PoolSeries, source_pools: Sequence[int | None]
) -> pl.DataFrame:
    """Return the joint capacity of each model's replicas in each region, in input tokens/s.

    There is one row for each moment at which the capacity changes.
    """
    tps = capacity_of(study, serving(study, series, source_pools))
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
