"""Charge a replay for the GPUs that its plan reserved."""

from dataclasses import replace

import numpy as np

from planner.domain.study import Study
from planner.optimizer.problem import ScalingPlan
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
    hardware, series = study.hardware, result.series
    prices, on_demand = hardware.reserved_prices(term, np.arange(HOURS) * HOUR_S, HOUR_S)
    running = series.ready + series.starting + series.draining
    hour_of = hours_of(running.shape[1], result.start_s, series.interval_s)  # of each interval
    paid = saved = 0.0
    for r, t in np.argwhere(reserved):
        place = hardware.regions[r].name, hardware.gpu_types[t].name
        gpus = np.zeros(running.shape[1])
        for counts, pool in zip(running, result.fleet.pools, strict=True):
            if not pool.spot and (pool.region, pool.gpu.name) == place:
                gpus += counts * pool.profile.tp
        # Dollars per hour on demand of the GPUs in use that are reserved, summed over intervals.
        replaced = np.minimum(gpus, reserved[r, t]) @ on_demand[hour_of, r, t]
        paid += float(reserved[r, t] * prices[r, t]) * study.window.duration_s / HOUR_S
        saved += float(replaced) * series.interval_s / HOUR_S
    return replace(summary, cost_usd=summary.cost_usd + paid - saved, reserved_usd=paid)
