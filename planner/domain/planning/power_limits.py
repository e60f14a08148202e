"""Limit the power of sites and racks: rows of the program, groups of pools, and their use."""

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
    """Return the use of each power limit by the replicas ``target [p, l, r, g]``."""
    if problem.power_kw is None:
        return ()
    uses = []
    places = np.argwhere(np.isfinite(problem.power_kw))
    for cap, (r, t) in zip(power_caps(problem), places.tolist(), strict=True):
        peak = float((target * cap.per_instance).sum(axis=(1, 2, 3)).max())
        gpu = problem.row_names[t] if t < len(problem.row_names) else ""
        share = peak / cap.limit if cap.limit else 0.0
        uses.append(PowerUse(cap.where, problem.regions[r], gpu, cap.limit, peak, share))
    return tuple(uses)


def limited_pools(
    hardware: Hardware, kw: FloatArray
) -> tuple[tuple[tuple[int, ...], int, IntArray], ...]:
    """Return (pools, limit in watts, watts of a replica) for each power limit.

    ``pools`` are the indices of the pools that it limits. ``kw [model, region, GPU column]`` are
    the kilowatts of a replica; the watts are ``[pools]``, for all pools of the hardware.
    """
    limits = power_limits(hardware, kw)
    if limits is None:
        return ()
    watts = np.array([round(1000 * kw[place]) for place in hardware.pool_index], np.int64)
    site = len(hardware.gpu_types)  # column of sites, which limits all GPU types of a region
    groups = []
    for r, t in np.argwhere(np.isfinite(limits)).tolist():
        pools = tuple(
            p
            for p, (_, region, g) in enumerate(hardware.pool_index)
            if region == r and t in (hardware.types[g], site)
        )
        groups.append((pools, int(1000 * limits[r, t]), watts))
    return tuple(groups)


def power_limits(hardware: Hardware, kw: FloatArray) -> FloatArray | None:
    """Return the power limits of racks, by GPU type, and of sites, in kW, ``[r, t + 1]``.

    The last column is that of the sites. ``kw [model, region, GPU column]`` is the power of a
    replica. None: there is no limit.
    """
    if not np.isfinite(np.append(hardware.site_kw, hardware.rack_kw)).any():
        return None
    limits = np.full((len(hardware.regions), len(hardware.gpu_types) + 1), np.inf)
    limits[:, -1] = hardware.site_kw
    # A rack holds whole replicas of one GPU type, so it can use only part of its limit. Several
    # kinds of replicas in one rack are only limited by their sum.
    for r in np.flatnonzero(np.isfinite(hardware.rack_kw)):
        pue = hardware.regions[r].pue
        for t, gpus in enumerate(hardware.gpus_per_rack[r].tolist()):
            racks = -(-int(hardware.capacity_gpus[r, t]) // gpus)
            replicas = [
                (profile.tp, float(kw[m, r, g]))
                for (m, g), profile in hardware.profiles.items()
                if hardware.types[g] == t
            ]
            limits[r, t] = racks * fullest_rack(gpus, float(hardware.rack_kw[r]) * pue, replicas)
    return limits


def fullest_rack(gpus: int, limit_kw: float, replicas: Sequence[tuple[int, float]]) -> float:
    """Return the most kilowatts of whole replicas in a rack of ``gpus`` within ``limit_kw``.

    ``replicas`` has GPUs and kilowatts of each kind. A replica wider than a rack takes its share of
    the power in each of its racks.
    """
    inside = [(tp, kw) if tp <= gpus else (gpus, kw * gpus / tp) for tp, kw in replicas]
    # An unbounded knapsack: the sums of kilowatts that replicas on exactly n GPUs can draw.
    sums = [{0.0}, *(set[float]() for _ in range(gpus))]
    for used in range(gpus):
        for tp, kw in inside:
            if used + tp <= gpus:
                sums[used + tp] |= {
                    round(total + kw, 6) for total in sums[used] if total + kw <= limit_kw + 1e-9
                }
    return max(max(totals, default=0.0) for totals in sums)
