"""Limit the power of sites and racks: the limits, the pools that share them, and their use.

A site limit holds for all GPUs of a region. A rack limit holds for each rack of a GPU type.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.inputs.scenario.build import Hardware
from planner.optimizer.objective import power_caps
from planner.optimizer.problem import PlanningProblem
from simulation.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class PowerUse:
    """Power of a plan at a site or at the racks of a GPU type, at rated load with PUE."""

    where: str
    region: str
    gpu: str  # "" for a site
    limit_kw: float
    peak_kw: float  # highest of all periods
    share: float  # share of the limit


def power_use(problem: PlanningProblem, target: IntArray) -> tuple[PowerUse, ...]:
    """Return how much of each power limit a plan uses at its peak.

    The plan has the replicas ``target [period, model, region, GPU column]``.
    """
    if problem.power_kw is None:
        return ()
    uses = []
    # ``power_kw [region, column]`` has a column for the racks of each GPU type, and a last one for
    # the site. ``power_caps`` has the finite limits in the same order.
    places = np.argwhere(np.isfinite(problem.power_kw))
    for cap, (region, column) in zip(power_caps(problem), places.tolist(), strict=True):
        peak_kw = float((target * cap.per_instance).sum(axis=(1, 2, 3)).max())
        gpu = problem.row_names[column] if column < len(problem.row_names) else ""  # "": the site
        share = peak_kw / cap.limit if cap.limit else 0.0
        uses.append(PowerUse(cap.where, problem.regions[region], gpu, cap.limit, peak_kw, share))
    return tuple(uses)


def limited_pools(
    hardware: Hardware, kw: FloatArray
) -> tuple[tuple[tuple[int, ...], int, IntArray], ...]:
    """Return (pools, limit in watts, watts of a replica) for each power limit.

    ``pools`` are the indices of the pools that share the limit. The watts of a replica are those of
    each pool of the hardware, ``[pools]``, from its kilowatts ``kw [model, region, GPU column]``.
    """
    limits_kw = power_limits(hardware, kw)  # [region, column]: GPU types, then the site
    if limits_kw is None:
        return ()
    pools = hardware.model_region_gpu
    watts = np.array([round(1000 * kw[pool]) for pool in pools], np.int64)
    site = len(hardware.gpu_types)  # this column limits all GPU types of a region together
    limited = []
    for r, column in np.argwhere(np.isfinite(limits_kw)).tolist():
        sharing = [
            p
            for p, (_, region, g) in enumerate(pools)
            if region == r and column in (hardware.types[g], site)
        ]
        limited.append((tuple(sharing), int(1000 * limits_kw[r, column]), watts))
    return tuple(limited)


def power_limits(hardware: Hardware, kw: FloatArray) -> FloatArray | None:
    """Return the power limits of racks and sites in kW; None if there is no limit.

    The rows are regions. There is a column for the racks of each GPU type, and a last one for the
    site; infinite: no limit. ``kw [model, region, GPU column]`` is the power of a replica.
    """
    if not np.isfinite(np.append(hardware.site_kw, hardware.rack_kw)).any():
        return None
    limits = np.full((len(hardware.regions), len(hardware.gpu_types) + 1), np.inf)
    limits[:, -1] = hardware.site_kw
    # A rack holds whole replicas of one GPU type, so it may not be able to use all of its limit.
    for r in np.flatnonzero(np.isfinite(hardware.rack_kw)).tolist():
        rack_kw = float(hardware.rack_kw[r]) * hardware.regions[r].pue
        for t, gpus in enumerate(hardware.gpus_per_rack[r].tolist()):
            racks = math.ceil(hardware.capacity_gpus[r, t] / gpus)
            replicas = [
                (profile.tp, float(kw[m, r, g]))
                for (m, g), profile in hardware.profiles.items()
                if hardware.types[g] == t
            ]
            limits[r, t] = racks * fullest_rack(gpus, rack_kw, replicas)
    return limits


def fullest_rack(gpus: int, limit_kw: float, replicas: Sequence[tuple[int, float]]) -> float:
    """Return the most kilowatts of whole replicas in a rack of ``gpus`` within ``limit_kw``.

    ``replicas`` has the GPUs and kilowatts of each kind of replica. One that spans several racks
    fills all GPUs of a rack, and takes that share of its power there.
    """
    in_rack = [(tp, kw) if tp <= gpus else (gpus, kw * gpus / tp) for tp, kw in replicas]
    # An unbounded knapsack: kilowatts that replicas on exactly n GPUs can draw, for n up to gpus.
    kw_of_gpus: list[set[float]] = [{0.0}, *(set() for _ in range(gpus))]
    for used_gpus in range(gpus):
        for tp, kw in in_rack:
            if used_gpus + tp > gpus:
                continue
            for total_kw in kw_of_gpus[used_gpus]:
                if total_kw + kw <= limit_kw + 1e-9:
                    kw_of_gpus[used_gpus + tp].add(round(total_kw + kw, 6))
    return max(max(totals, default=0.0) for totals in kw_of_gpus)
