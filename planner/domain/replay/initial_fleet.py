"""Build the fleet with which a policy begins its window, from today's fleet."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.domain.study import Study
from simulation.arrays import IntArray
from simulation.fleet import Fleet, Pool
from simulation.policy import ScalingPolicy
from simulation.start_times import StartUp


def fleet_from_today(
    study: Study, fleet: Fleet, source_pools: Sequence[int], policy: ScalingPolicy, *, lend: bool
) -> Fleet:
    """Return ``fleet`` as it begins a replay: with today's replicas running.

    If the policy's first decision keeps fewer replicas, the surplus is lent, provided that ``lend``
    is set and enough GPUs are free. ``source_pools`` gives, for each pool of ``fleet``, the index
    of the study's pool that it came from. A policy may have split a pool of the study.
    """
    first_counts = np.clip(
        policy.reset(fleet),
        [pool.minimum for pool in fleet.pools],
        [pool.maximum for pool in fleet.pools],
    )
    today = _today_by_pool(study.counts_by_pool(study.today), source_pools, first_counts)
    surplus = np.maximum(today - first_counts, 0) if lend else np.zeros_like(today)
    lent = _lendable(study, fleet, source_pools, first_counts, surplus)
    pools = (
        replace(pool, today=int(running), start_up=_start_up_of_lent(pool, int(lent_of_pool)))
        for pool, running, lent_of_pool in zip(fleet.pools, today, lent, strict=True)
    )
    return replace(fleet, pools=tuple(pools))


def _today_by_pool(today: IntArray, source_pools: Sequence[int], first: IntArray) -> IntArray:
    """Return today's replicas of each pool of a fleet whose policy may have split pools.

    ``today`` counts the replicas of the study's pools. ``source_pools`` gives the index of the
    study's pool that each pool came from. ``first [pools]`` are the replicas of the policy's first
    decision. Each part of a split pool gets up to that many. The first part gets the rest too.
    """
    counts, unassigned = np.zeros(len(source_pools), np.int64), today.copy()
    for p, source in enumerate(source_pools):
        counts[p] = min(first[p], unassigned[source])
        unassigned[source] -= counts[p]
    for p, source in enumerate(source_pools):
        counts[p] += unassigned[source]
        unassigned[source] = 0
    return counts


def _lendable(
    study: Study, fleet: Fleet, source_pools: Sequence[int], first: IntArray, surplus: IntArray
) -> IntArray:
    """Return how many of the ``surplus`` replicas of each pool can be lent, ``[pools]``.

    They need GPUs that no pool uses for its first replicas (``first [pools]``), or for replicas
    that it has lent already. Spot instances are not lent. ``source_pools`` gives the index of the
    study's pool that each pool came from.
    """
    hardware = study.hardware
    place_of_pool = []  # (region, GPU type) of each pool
    for source in source_pools:
        _, r, g = hardware.model_region_gpu[source]
        place_of_pool.append((r, int(hardware.types[g])))
    free_gpus = hardware.capacity_gpus.copy()
    for pool, place, count in zip(fleet.pools, place_of_pool, first.tolist(), strict=True):
        lent_already = 0 if pool.start_up is None else pool.start_up.lent
        free_gpus[place] -= (count + lent_already) * pool.gpus_per_instance
    # Earlier pools take free GPUs first.
    to_lend = np.zeros(len(source_pools), np.int64)
    for p, (pool, place) in enumerate(zip(fleet.pools, place_of_pool, strict=True)):
        if not pool.spot:
            fitting = max(0, int(free_gpus[place])) // pool.gpus_per_instance
            to_lend[p] = min(int(surplus[p]), fitting)
            free_gpus[place] -= int(to_lend[p]) * pool.gpus_per_instance
    return to_lend


def _start_up_of_lent(pool: Pool, more: int) -> StartUp | None:
    """Return the pool's start-up times and lent replicas, with ``more`` replicas lent."""
    if not more:
        return pool.start_up
    start = pool.start_up or StartUp(local_s=pool.startup_s, remote_s=pool.startup_s)
    return replace(start, lent=start.lent + more)
