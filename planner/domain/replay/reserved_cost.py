"""Charge a replay for the GPUs that its plan reserved."""

from dataclasses import replace

import numpy as np

from planner.domain.study import Study
from planner.optimizer.problem import ScalingPlan
from simulation.arrays import FloatArray
from simulation.energy import hours_of
from simulation.fleet import HOUR_S, HOURS
from simulation.metrics import Summary
from simulation.trace_replay import Replayed


def with_reserved(study: Study, summary: Summary, result: Replayed, plan: ScalingPlan) -> Summary:
    """Return the summary with the cost of the plan's reserved GPUs, paid whether used or not.

    A reserved GPU takes the place of an on-demand GPU of its region and type while one is used. The
    on-demand cost is then saved. ``result`` is the replay with the GPUs in use.
    """
    term, reserved = study.settings.plan.objective.reserve, plan.reserved
    if term is None or reserved is None or not reserved.any():
        return summary
    hardware, interval_h = study.hardware, result.series.interval_s / HOUR_S
    reserved_usd, on_demand_usd = hardware.reserved_prices(term, np.arange(HOURS) * HOUR_S, HOUR_S)
    hour_of = hours_of(result.series.ready.shape[1], result.start_s, result.series.interval_s)
    window_h = study.window.duration_s / HOUR_S
    paid = saved = 0.0
    for r, t in np.argwhere(reserved):
        used = _gpus_in_use(result, hardware.regions[r].name, hardware.gpu_types[t].name)
        # Dollars per hour on demand of the GPUs in use that are reserved, summed over intervals.
        replaced_usd = np.minimum(used, reserved[r, t]) @ on_demand_usd[hour_of, r, t]
        paid += float(reserved[r, t] * reserved_usd[r, t]) * window_h
        saved += float(replaced_usd) * interval_h
    return replace(summary, cost_usd=summary.cost_usd + paid - saved, reserved_usd=paid)


def _gpus_in_use(result: Replayed, region: str, gpu: str) -> FloatArray:
    """Return the GPUs of a type, not spot, that run replicas in a region, ``[interval]``."""
    series = result.series
    running = series.ready + series.starting + series.draining  # [pool, interval]
    gpus = np.zeros(running.shape[1])
    for replicas, pool in zip(running, result.fleet.pools, strict=True):
        if not pool.spot and pool.region == region and pool.gpu.name == gpu:
            gpus += replicas * pool.profile.tp
    return gpus
