"""What a policy begins with: today's fleet, and what it has done with it by the window's start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.studies.values import Study
from simulation.arrays import IntArray
from simulation.fleet import Fleet, Pool
from simulation.policy import ScalingPolicy
from simulation.starting import StartUp


def beginning(
    study: Study, fleet: Fleet, whence: Sequence[int], policy: ScalingPolicy, *, lend: bool
) -> Fleet:
    """``fleet`` as it follows on today's: instances of the policy's first answer beyond those that
    run today are paid from when they were asked for, and what it leaves of today's is lent, where
    instances that are taken out are, as far as the GPUs go. ``whence`` is the pool of the study
    that each pool came from."""
    first = np.clip(
        policy.reset(fleet),
        [pool.minimum for pool in fleet.pools],
        [pool.maximum for pool in fleet.pools],
    )
    today = _shared_out(study.pools(study.today), whence, first)
    left = np.maximum(today - first, 0) if lend else np.zeros_like(today)
    lent = _within_gpus(study, fleet, whence, first, left)
    pools = (
        replace(pool, today=int(ran), start_up=_lending(pool, int(more)))
        for pool, ran, more in zip(fleet.pools, today, lent, strict=True)
    )
    return replace(fleet, pools=tuple(pools))


def _shared_out(today: IntArray, whence: Sequence[int], first: IntArray) -> IntArray:
    """Today's instances by pool of a fleet that may be cut: each pool what it begins with, and the
    first of those cut out of one what is left."""
    out, left = np.zeros(len(whence), np.int64), today.copy()
    for p, source in enumerate(whence):
        out[p] = min(first[p], left[source])
        left[source] -= out[p]
    for p, source in enumerate(whence):
        out[p] += left[source]
        left[source] = 0
    return out


def _within_gpus(
    study: Study, fleet: Fleet, whence: Sequence[int], first: IntArray, left: IntArray
) -> IntArray:
    """Of the instances ``left`` those whose GPUs nobody else begins with; spot is not lent."""
    hardware = study.hardware
    free = hardware.capacity_gpus.copy()
    places = []
    for pool, source, count in zip(fleet.pools, whence, first, strict=True):
        _, r, g = hardware.pool_index[source]
        places.append((r, int(hardware.types[g])))
        lent = 0 if pool.start_up is None else pool.start_up.lent
        free[places[-1]] -= (int(count) + lent) * pool.gpus_per_instance
    out = np.zeros(len(whence), np.int64)
    for p, (pool, place) in enumerate(zip(fleet.pools, places, strict=True)):
        room = max(0, int(free[place])) // pool.gpus_per_instance
        out[p] = 0 if pool.spot else min(int(left[p]), room)
        free[place] -= int(out[p]) * pool.gpus_per_instance
    return out


def _lending(pool: Pool, more: int) -> StartUp | None:
    if not more:
        return pool.start_up
    start = pool.start_up or StartUp(local_s=pool.startup_s, remote_s=pool.startup_s)
    return replace(start, lent=start.lent + more)
