"""Compute the capacity of the replicas that serve at each moment of a replay.

The capacity is the input tokens/s that they sustain within the SLO.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from planner.domain.replay.replica_loss import capacity_of
from planner.domain.serialise import moments
from planner.domain.study import Study
from simulation.arrays import IntArray
from simulation.results import PoolSeries

ROUNDING = 1e-6  # share of a replica: tolerance for rounding of means over time


def serving(study: Study, series: PoolSeries, source_pools: Sequence[int | None]) -> IntArray:
    """Return the serving replicas in each interval, ``[interval, model, region, GPU column]``.

    ``source_pools`` gives the index of the study's pool that each replayed pool came from. None
    marks a pool that serves no requests. Means over an interval are rounded down.
    """
    serving_replicas = np.floor(series.ready + ROUNDING).astype(np.int64)  # [pool, interval]
    intervals = serving_replicas.shape[1]
    counts = np.zeros((intervals, *study.hardware.minimum.shape), np.int64)
    for source, replicas in zip(source_pools, serving_replicas, strict=True):
        if source is not None:
            m, r, g = study.hardware.model_region_gpu[source]
            counts[:, m, r, g] += replicas
    return counts


def capacity_table(
    study: Study, series: PoolSeries, source_pools: Sequence[int | None]
) -> pl.DataFrame:
    """Return the joint capacity of each model's replicas in each region, in input tokens/s.

    There is one row for each moment at which the capacity changes, and one for the last interval.
    ``source_pools`` gives the index of the study's pool that each replayed pool came from; None: it
    serves no requests.
    """
    tps = capacity_of(study, serving(study, series, source_pools))  # [interval, model, region]
    hardware, frames = study.hardware, []
    for m, r in dict.fromkeys((m, r) for m, r, _ in hardware.model_region_gpu):
        is_change = np.diff(tps[:, m, r], prepend=np.nan) != 0
        is_change[-1] = True
        after_s = series.interval_s * np.flatnonzero(is_change).astype(np.float64)
        columns = {
            "time": moments(study.window.start_s, after_s),
            "model": hardware.models[m].name,
            "region": hardware.regions[r].name,
            "capacity_tps": tps[is_change, m, r],
        }
        frames.append(pl.DataFrame(columns))
    return pl.concat(frames)
