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

SHARE = 1 - 1e-9  # factor on the needed rate: a rounding error must not add an instance
TOO_FEW = 1 - 1e-6  # share of the load that a fleet of one instance less can serve
IN_PROPORTION = (
    "Replicas follow the peak demand and the capacity of a pool, plus the spare replicas. Simulate "
    "to confirm."
)


@dataclass(frozen=True, slots=True, eq=False)
class StaticFleet:
    """The instances ``counts`` ``[model, region, GPU column]``; ``spare`` of them may be lost.

    ``more_spare`` are added to each pool.
    """

    counts: IntArray
    spare: IntArray
    more_spare: int


def spare_of(counts: IntArray, spare: int, *, by_pool: bool) -> IntArray:
    """Return the spare instances of each pool of ``counts`` ``[model, region, GPU column]``.

    Unless ``by_pool``, only the largest pool of a model in a region has them.
    """
    largest = np.arange(counts.shape[2]) == counts.argmax(axis=2)[:, :, None]
    return np.where((counts > 0) & (by_pool | largest), spare, 0)


def instances_for(
    fleet: StaticFleet, before: Sizes, after: Sizes, peak_tps: FloatArray, growth: float
) -> IntArray:
    """Return the fewest instances of each pool if capacity and load change, with the same spares.

    The load is ``growth`` times what the pools serve now. That is their share of the peak demand
    ``peak_tps`` ``[model, region]``, by the sizes ``before``. One instance less was too few, so it
    exceeds the capacity of one less. The result serves the load by ``after``. -1 means that no
    number of instances suffices.
    """
    counts = fleet.counts
    serving = np.where(counts > 0, np.maximum(1, counts - fleet.spare), 0)
    capacity, capacity_of_one_less = (
        pool_capacity(before.theta_tps, before.pool_tps, instances)
        for instances in (serving, np.maximum(0, serving - 1))
    )
    share = capacity / np.maximum(capacity.sum(axis=2, keepdims=True), 1e-300)
    # What the pools serve now: their part of the peak, within what their counts imply.
    served = np.clip(peak_tps[:, :, None] * share, capacity_of_one_less / TOO_FEW, capacity)
    load = growth * served
    instances = np.zeros_like(counts)
    for m, r, g in np.argwhere(counts > 0).tolist():
        fewest = _fewest(after.pool_tps[m, g], after.theta_tps[m, g], load[m, r, g])
        instances[m, r, g] = fewest if fewest < 0 else fewest + counts[m, r, g] - serving[m, r, g]
    return instances


def _fewest(pool_tps: FloatArray, theta_tps: float, needed: float) -> int:
    """Return the fewest instances with a joint capacity of ``needed`` tokens/s; -1 if none."""
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
    hourly_totals = [totals(period, counts) for period in (first, *later)]
    usd, gpu_hours, kwh, kg = (
        hours * sum(getattr(taken, name) for taken in hourly_totals)
        for name in ("usd", "gpu_hours", "kwh", "kg")
    )
    return PlanTotals(usd, gpu_hours, kwh, kg, hourly_totals[0].starts, hourly_totals[0].stops)


def with_spare(counts: IntArray, more: int) -> IntArray:
    """Return ``counts`` plus ``more`` in each pool in use, at least one instance, ``[pools]``."""
    return np.where(counts > 0, np.maximum(1, counts + more), counts)
