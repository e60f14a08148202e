"""Resize a static fleet for changed demand and capacity, for a what-if."""

from dataclasses import dataclass, replace

import numpy as np

from planner.domain.planning.figures import PlanTotals
from planner.domain.planning.inputs import Load, PlanInput
from planner.domain.planning.period_solver import Periods
from planner.domain.sizing.sizing import Sizes
from planner.inputs.scenario.build import Hardware
from planner.optimizer.objective import totals
from planner.optimizer.pools import pool_capacity
from simulation.arrays import FloatArray, IntArray

SHARE = 1 - 1e-9  # factor on the needed rate: a rounding error must not add a replica
TOO_FEW = 1 - 1e-6  # share of the load that a fleet of one replica less can serve
IN_PROPORTION = (
    "Replicas follow the peak demand and the capacity of a pool, plus the spare replicas. Simulate "
    "to confirm."
)


@dataclass(frozen=True, slots=True, eq=False)
class StaticFleet:
    """The replicas of a static fleet, by pool."""

    counts: IntArray  # [model, region, GPU column]
    spare: IntArray  # [model, region, GPU column] how many of them may be lost
    more_spare: int  # to add to each pool


def spare_of(counts: IntArray, spare: int, *, by_pool: bool) -> IntArray:
    """Return the spare replicas of each pool of ``counts``, both ``[model, region, GPU column]``.

    They are ``spare`` in each pool if ``by_pool``, else in the largest pool of a model and region.
    """
    largest = np.arange(counts.shape[2]) == counts.argmax(axis=2)[:, :, None]
    return np.where((counts > 0) & (by_pool | largest), spare, 0)


def instances_for(
    fleet: StaticFleet, before: Sizes, after: Sizes, peak_tps: FloatArray, growth: float
) -> IntArray:
    """Return the fewest replicas of each pool for changed sizes and ``growth`` times the load.

    The result is ``[model, region, GPU column]``, with the spare replicas of ``fleet``; -1 means
    that no number is enough. The load of a pool is its share of ``peak_tps [model, region]``, by
    its capacity in the sizes ``before``.
    """
    counts = fleet.counts
    serving = np.where(counts > 0, np.maximum(1, counts - fleet.spare), 0)
    capacity = pool_capacity(before.theta_tps, before.pool_tps, serving)
    share = capacity / np.maximum(capacity.sum(axis=2, keepdims=True), 1e-300)
    # One replica less was too few, so the load exceeds the capacity of one less.
    one_less = pool_capacity(before.theta_tps, before.pool_tps, np.maximum(0, serving - 1))
    load = growth * np.clip(peak_tps[:, :, None] * share, one_less / TOO_FEW, capacity)
    needed, spare = np.zeros_like(counts), counts - serving
    for m, r, g in np.argwhere(counts > 0).tolist():
        fewest = _fewest(after.pool_tps[m, g], after.theta_tps[m, g], load[m, r, g])
        needed[m, r, g] = fewest if fewest < 0 else fewest + spare[m, r, g]
    return needed


def _fewest(pool_tps: FloatArray, theta_tps: float, needed: float) -> int:
    """Return the fewest replicas with a joint capacity of ``needed`` tokens/s; -1: none is enough.

    ``pool_tps`` are the capacities of pools of 1, 2, ... replicas. Beyond them, each replica adds
    ``theta_tps``.
    """
    if theta_tps <= 0:
        return -1
    n = int(np.searchsorted(pool_tps, needed * SHARE)) + 1
    if n <= len(pool_tps):
        return n
    return len(pool_tps) + int(np.ceil((needed * SHARE - pool_tps[-1]) / theta_tps))


def missing_instances(hardware: Hardware, counts: IntArray) -> str:
    """Return a sentence if the fleet exceeds a limit of the scenario, else ""."""
    used_gpus = np.zeros(hardware.capacity_gpus.shape, np.int64)
    for m, r, g in np.argwhere(counts > 0).tolist():  # also pools that the limits rule out
        used_gpus[r, hardware.columns[g].gpu] += counts[m, r, g] * hardware.profiles[m, g].tp
        maximum = int(hardware.maximum[m, r, g])
        if counts[m, r, g] > maximum:
            return (
                f"{hardware.models[m].name} on {hardware.arrangement(m, g)} in "
                f"{hardware.regions[r].name} needs {counts[m, r, g]:,} replicas. At most "
                f"{maximum:,} may run there."
            )
    short = np.argwhere(used_gpus > hardware.capacity_gpus).tolist()
    if short:
        r, t = short[0]
        return (
            f"{hardware.regions[r].name} needs {used_gpus[r, t]:,} {hardware.type_names[t]} and "
            f"has {hardware.capacity_gpus[r, t]:,}. Simulate to find another fleet."
        )
    return ""


def use_of(inputs: PlanInput, load: Load, counts: IntArray) -> PlanTotals:
    """Return the cost, energy and starts of the static fleet ``counts`` over the whole window.

    The starts are from today's fleet.
    """
    hours = inputs.window.period_s / 3600
    first, *later = Periods.of(inputs, load).problems
    later = [replace(period, current=counts) for period in later]
    hourly = [totals(period, counts) for period in (first, *later)]
    return PlanTotals(
        usd=hours * sum(period.usd for period in hourly),
        gpu_hours=hours * sum(period.gpu_hours for period in hourly),
        kwh=hours * sum(period.kwh for period in hourly),
        carbon_kg=hours * sum(period.kg for period in hourly),
        starts=hourly[0].starts,
        stops=hourly[0].stops,
    )


def with_spare(counts: IntArray, more: int) -> IntArray:
    """Return ``counts`` plus ``more`` in each pool in use, at least one replica each."""
    return np.where(counts > 0, np.maximum(1, counts + more), counts)
