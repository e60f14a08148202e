"""Resize a static fleet for changed demand and capacity, for a what-if."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from planner.domain.planning.figures import PlanTotals
from planner.domain.planning.inputs import Load, PlanInput
from planner.domain.planning.period_solver import Periods
from planner.domain.sizing.sizing import Sizes
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.schema.planning import Spare
from planner.optimizer.objective import totals
from planner.optimizer.pools import pool_capacity
from simulation.arrays import FloatArray, IntArray

ROUNDING_FACTOR = 1 - 1e-9  # factor on the needed rate: a rounding error must not add a replica
MAX_SHARE_WITH_ONE_LESS = (
    1 - 1e-6
)  # at most this share of the load could be served with one replica less
IN_PROPORTION = (
    "Replicas follow the peak demand and the capacity of a pool, plus the spare replicas. Simulate "
    "to confirm."
)


@dataclass(frozen=True, slots=True, eq=False)
class StaticFleet:
    """The replicas of a static fleet, by pool: ``[model, region, GPU column]``."""

    counts: IntArray
    spare: IntArray  # those of ``counts`` that may be lost
    more_spare: int  # spare replicas to add to each pool; negative: to remove

    @classmethod
    def of(cls, counts: IntArray, old: Spare, new: Spare) -> Self:
        """Return the fleet ``counts`` with the spare replicas ``old``, which become ``new``."""
        spare = spare_of(counts, old.instances, by_pool=old.by == "pool")
        return cls(counts, spare, new.instances - old.instances)


def spare_of(counts: IntArray, spare: int, *, by_pool: bool) -> IntArray:
    """Return the spare replicas in each pool of ``counts``, both ``[model, region, GPU column]``.

    With ``by_pool``, every pool has ``spare`` of them, else only the largest pool of each model and
    region.
    """
    has_spare = counts > 0
    if not by_pool:
        has_spare &= np.arange(counts.shape[2]) == counts.argmax(axis=2)[:, :, None]
    return np.where(has_spare, spare, 0)


def instances_for(
    fleet: StaticFleet, before: Sizes, after: Sizes, peak_tps: FloatArray, growth: float
) -> IntArray:
    """Return the fewest replicas of each pool for changed sizes and ``growth`` times the load.

    The result is ``[model, region, GPU column]``, with the spare replicas of ``fleet``; -1: no
    number is enough. The pools of a model and region share its ``peak_tps [model, region]`` by
    their capacity in the sizes ``before``.
    """
    counts, theta_tps, pool_tps = fleet.counts, before.theta_tps, before.pool_tps
    serving = np.where(counts > 0, np.maximum(1, counts - fleet.spare), 0)
    # The load of each pool, by its share of the capacity in its region; 1e-300 avoids 0 / 0.
    capacity = pool_capacity(theta_tps, pool_tps, serving)
    share = capacity / np.maximum(capacity.sum(axis=2, keepdims=True), 1e-300)
    pool_load = peak_tps[:, :, None] * share
    # The fleet is the smallest one, so the load exceeds the capacity of one replica less.
    one_less = pool_capacity(theta_tps, pool_tps, np.maximum(0, serving - 1))
    load = growth * np.clip(pool_load, one_less / MAX_SHARE_WITH_ONE_LESS, capacity)
    needed = np.zeros_like(counts)
    for m, r, g in np.argwhere(counts > 0).tolist():
        needed[m, r, g] = _fewest(after.pool_tps[m, g], after.theta_tps[m, g], load[m, r, g])
    return np.where(needed > 0, needed + counts - serving, needed)


def _fewest(pool_tps: FloatArray, theta_tps: float, needed_tps: float) -> int:
    """Return the fewest replicas with a joint capacity of ``needed_tps``; -1: no number is.

    ``pool_tps`` are the capacities of pools of 1, 2, ... replicas. In larger pools, each further
    replica adds ``theta_tps``.
    """
    if theta_tps <= 0:
        return -1
    needed_tps *= ROUNDING_FACTOR
    if needed_tps <= pool_tps[-1]:
        return int(np.argmax(pool_tps >= needed_tps)) + 1  # the first pool that is enough
    return len(pool_tps) + int(np.ceil((needed_tps - pool_tps[-1]) / theta_tps))


def gpus_used(hardware: Hardware, target: IntArray) -> IntArray:
    """Return the GPUs of the replicas ``target``, ``[period, region, GPU type]``.

    ``target`` is ``[period, model, region, GPU column]``.
    """
    used = np.zeros((len(target), *hardware.capacity_gpus.shape), np.int64)
    for (m, g), profile in hardware.profiles.items():
        used[:, :, hardware.types[g]] += target[:, m, :, g] * profile.tp
    return used


def exceeded_limit(hardware: Hardware, counts: IntArray) -> str:
    """Return a sentence on the first limit on replicas or GPUs that the fleet exceeds, or "".

    ``counts`` are replicas, ``[model, region, GPU column]``.
    """
    maximum, capacity = hardware.maximum, hardware.capacity_gpus
    for m, r, g in np.argwhere(counts > maximum).tolist():
        return (
            f"{hardware.models[m].name} on {hardware.arrangement(m, g)} in "
            f"{hardware.regions[r].name} needs {counts[m, r, g]:,} replicas. At most "
            f"{maximum[m, r, g]:,} may run there."
        )
    (used,) = gpus_used(hardware, counts[None])  # [region, GPU type]
    for r, t in np.argwhere(used > capacity).tolist():
        return (
            f"{hardware.regions[r].name} needs {used[r, t]:,} {hardware.type_names[t]} and has "
            f"{capacity[r, t]:,}. Simulate to find another fleet."
        )
    return ""


def fleet_totals(inputs: PlanInput, load: Load, counts: IntArray) -> PlanTotals:
    """Return the cost, energy and starts of the static fleet ``counts`` over the whole window.

    The starts are those from today's fleet.
    """
    hours = inputs.window.period_s / 3600
    first, *later = Periods.of(inputs, load).problems
    first_totals = totals(first, counts)
    later_totals = [totals(replace(period, current=counts), counts) for period in later]
    hourly = [first_totals, *later_totals]
    return PlanTotals(
        usd=hours * sum(period.usd for period in hourly),
        gpu_hours=hours * sum(period.gpu_hours for period in hourly),
        kwh=hours * sum(period.kwh for period in hourly),
        carbon_kg=hours * sum(period.kg for period in hourly),
        starts=first_totals.starts,
        stops=first_totals.stops,
    )


def with_spare(counts: IntArray, more: int) -> IntArray:
    """Return ``counts`` with ``more`` replicas in each used pool, which keeps at least one."""
    return np.where(counts > 0, np.maximum(1, counts + more), counts)
