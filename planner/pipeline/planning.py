"""The rolling plan: forecast each period's load from what is known, solve E7, move on (LT-I)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.errors import Infeasible
from planner.optimizer import plan_sequence, solve_window
from planner.optimizer.problem import (
    FEASIBLE,
    OPTIMAL,
    PlanningProblem,
    ScalingPlan,
    WindowPlan,
)
from planner.pipeline.forecasts import (
    DEFERRABLE,
    SeriesForecast,
    by_model_and_region,
    forecast_window,
    interactive,
)
from planner.pipeline.progress import Progress, part
from planner.pipeline.sizing import Sizes
from planner.pipeline.traffic import Traffic
from planner.pipeline.window import Window, words_of
from planner.scenario.build import Hardware
from planner.scenario.schema import Scenario

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
CONTROL_S = 60.0  # how often a plan in force looks at the clock


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A rolling plan and what it stands on: the forecasts, and the load ``[p, l, r, w]`` in input
    tokens/s that each period was planned for."""

    plan: ScalingPlan
    forecasts: tuple[SeriesForecast, ...]
    load_tps: FloatArray


def plan_window(
    scenario: Scenario,
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    sizes: Sizes,
    *,
    current: IntArray,
    progress: Progress,
    method: str | None = None,
) -> Planned:
    """Forecast with ``method`` (the scenario's where None) and plan every period, ``[l, r, g]``
    instances from ``current`` on; raises Infeasible with the conflict in words."""
    forecasts = forecast_window(
        hardware,
        traffic,
        window,
        method=method or scenario.forecast.method,
        quantile=None if method else scenario.forecast.quantile,
        progress=part(progress, 0.0, 0.8),
    )
    load = np.zeros((len(window.period_starts_s), *current.shape[:2], window.bins_per_period))
    for one in forecasts:
        m, r = traffic.models.index(one.key.model), traffic.regions.index(one.key.region)
        load[:, m, r] = one.planned.reshape(load.shape[0], load.shape[3]) / window.bin_s
    load += scenario.forecast.niw_buffer * _deferrable_tps(hardware, traffic, window)[..., None]
    plan = plan_load(
        scenario,
        hardware,
        window,
        sizes,
        load,
        current=current,
        progress=part(progress, 0.8, 1.0),
        clock=traffic.clock,
    )
    return Planned(plan, forecasts, load)


def plan_load(
    scenario: Scenario,
    hardware: Hardware,
    window: Window,
    sizes: Sizes,
    load_tps: FloatArray,
    *,
    current: IntArray,
    progress: Progress,
    clock: str = "utc",
) -> ScalingPlan:
    """Plan every period for ``load_tps`` ``[p, l, r, w]``; raises Infeasible with the conflict."""
    problems = [
        problem(scenario, hardware, sizes, current, tps, window.period_s) for tps in load_tps
    ]
    objective = scenario.objective
    plan = plan_sequence(
        problems,
        period_start_s=window.period_starts_s,
        period_s=window.period_s,
        solver=objective.solver,
        gap=objective.gap,
        time_limit_s=objective.time_limit_s,
        progress=lambda done, total: progress(
            done / total, f"Planning period {min(done + 1, total)} of {total}"
        ),
    )
    for start, answer in zip(plan.period_start_s, plan.windows, strict=True):
        _require(answer, f"the period from {words_of(float(start), clock)}")
    return plan


def flat_at_peak(
    scenario: Scenario, hardware: Hardware, traffic: Traffic, window: Window, sizes: Sizes
) -> tuple[IntArray, str]:
    """The cheapest fleet ``[l, r, g]`` that covers every region's own peak of the whole window.

    Peaks that do not coincide may not fit together where every period by itself does: then it is
    what fits, and the sentence beside it says so ("" otherwise).

    It is sized in hindsight, from the demand that came (ahead of the trace: from the last window
    of the same length), so it is the flat fleet that a planner with perfect foresight of the peak
    would buy.
    """
    end_s = window.start_s if window.ahead else window.end_s
    start_s = max(end_s - window.duration_s, traffic.demand.start_s)
    tps = np.zeros((len(traffic.models), len(traffic.regions), 1))
    for tiers, weight in (
        (interactive(hardware), 1.0),
        ({t.name for t in hardware.tiers if t.deferrable}, scenario.forecast.niw_buffer),
    ):
        for (m, r), series in by_model_and_region(traffic, tiers):
            rate = series.window(start_s, end_s).rate()
            if np.any(~np.isnan(rate)):
                tps[m, r, 0] += weight * float(np.nanmax(rate))
    nothing = np.zeros(hardware.minimum.shape, np.int64)
    for epsilon in dict.fromkeys((1.0, scenario.objective.epsilon)):
        wanted = problem(
            scenario, hardware, sizes, nothing, tps, window.duration_s, epsilon=epsilon
        )
        answer = solve_window(
            wanted, solver=scenario.objective.solver, time_limit_s=scenario.objective.time_limit_s
        )
        if answer.status in (OPTIMAL, FEASIBLE):
            return answer.target, ""
    return answer.target, f"A flat fleet at the peak of the window does not fit. {answer.conflict}"


def problem(
    scenario: Scenario,
    hardware: Hardware,
    sizes: Sizes,
    current: IntArray,
    demand_tps: FloatArray,
    period_s: float,
    *,
    epsilon: float | None = None,
) -> PlanningProblem:
    """E7 for one period; ``demand_tps`` has shape ``[l, r, w]``.

    The start cost sigma is the price of the GPU time an instance burns before it serves (section
    5: price times start-up time), spread over the period, since E7 counts dollars per hour.
    """
    tp = np.ones((len(hardware.models), len(hardware.gpus)), np.int64)
    for at, profile in hardware.profiles.items():
        tp[at] = profile.tp
    usd_per_hour = tp[:, None, :] * hardware.usd_per_gpu_hour[None]
    return PlanningProblem(
        models=tuple(model.name for model in hardware.models),
        regions=tuple(region.name for region in hardware.regions),
        gpus=tuple(column.label for column in hardware.columns),
        current=current,
        theta_tps=sizes.theta_tps,
        usd_per_hour=usd_per_hour,
        start_usd=usd_per_hour * hardware.startup_s / period_s,
        gpus_per_instance=tp,
        demand_tps=demand_tps,
        capacity_gpus=hardware.capacity_gpus,
        minimum=np.where(sizes.theta_tps[:, None, :] > 0, hardware.minimum, 0),
        maximum=hardware.maximum,
        epsilon=scenario.objective.epsilon if epsilon is None else epsilon,
        **_shared(hardware),
    )


def _shared(hardware: Hardware) -> dict[str, Any]:
    """What the program must know where columns draw on the same GPUs or have a role."""
    if hardware.one_each:
        return {}
    names = tuple(gpu.name for gpu in hardware.gpu_types)
    return {"types": hardware.types, "type_names": names, "stages": hardware.stages}


def schedule(plan: ScalingPlan, window: Window) -> tuple[FloatArray, IntArray]:
    """When to ask for what: times (seconds from the window's start) and targets ``[t, l, r, g]``.

    Each period's instances are asked for ``lead_s`` before it begins, so that they are up then,
    and held until it ends: at any time the largest target among the period that runs and those
    already asked for. Requests fall on a control instant, never before what they rest on is known.
    """
    starts = plan.period_start_s - window.start_s
    on_control = np.floor((starts - window.lead_s) / CONTROL_S + 1e-9) * CONTROL_S
    asked = np.maximum(on_control, window.origins_s - window.start_s).clip(0.0, starts)
    times = np.unique(np.concatenate([starts, asked]))
    ends = np.append(starts[1:], np.inf)
    wanted = (asked <= times[:, None]) & (times[:, None] < ends)
    held = np.where(wanted[..., None, None, None], plan.target, 0)
    return times, held.max(axis=1)


def _deferrable_tps(hardware: Hardware, traffic: Traffic, window: Window) -> FloatArray:
    """NIW input tokens/s over the period before each decision, shape ``[p, l, r]`` (E6)."""
    tps = np.zeros((len(window.period_starts_s), len(traffic.models), len(traffic.regions)))
    deferrable = {tier.name for tier in hardware.tiers if tier.deferrable}
    for (m, r), series in by_model_and_region(traffic, deferrable, DEFERRABLE):
        for p, origin in enumerate(window.origins_s):
            rate = series.window(origin - window.period_s, origin).rate()
            if np.any(~np.isnan(rate)):
                tps[p, m, r] = np.nanmean(rate)
    return tps


def _require(answer: WindowPlan, what: str) -> None:
    if answer.status in (OPTIMAL, FEASIBLE):
        return
    if answer.conflict:
        raise Infeasible(f"There is no feasible plan for {what}. {answer.conflict}")
    raise Infeasible(
        f"The solver found no plan for {what} in its time; raise objective.time_limit_s or "
        "widen objective.gap."
    )
