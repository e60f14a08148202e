"""The plan of a window: forecast what each period is told, solve E7, period by period (LT-I) or all
periods at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.optimizer import solve_window
from planner.optimizer.problem import FEASIBLE, OPTIMAL, ScalingPlan
from planner.scenario.build import Hardware
from planner.scenario.schema import Scenario
from planner.studies.planning.program import problem
from planner.studies.planning.solving import ALL, Asked, plan_apart, plan_together
from planner.studies.progress import Progress, part
from planner.studies.sizing.sizing import Lengths, Sizes
from planner.studies.traffic.forecasts import (
    DEFERRABLE,
    INTERACTIVE,
    SeriesForecast,
    by_model_and_region,
    forecast_window,
    interactive,
)
from planner.studies.traffic.traffic import Traffic
from planner.studies.traffic.window import Window, words_of
from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.policies.scheduled import Scheduled

CONTROL_S = Scheduled.interval_s  # how often a plan in force looks at the clock


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan and what it stands on: the forecasts, and the load ``[p, l, r, w]`` in input tokens/s
    that each period was planned for, by tier ``[k, p, l, r, w]`` where tiers are told apart."""

    plan: ScalingPlan
    forecasts: tuple[SeriesForecast, ...]
    load_tps: FloatArray
    tiers: tuple[str, ...] = ()
    tier_tps: FloatArray | None = None


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
    periods: str | None = None,
) -> Planned:
    """Forecast with ``method`` (the scenario's where None) and plan every period, ``[l, r, g]``
    instances from ``current`` on; raises Infeasible with the conflict in words. ``periods``: one
    or all, in place of the scenario's."""
    periods = periods or scenario.objective.periods
    forecasts = forecast_window(
        hardware,
        traffic,
        window,
        method=method or scenario.forecast.method,
        quantile=None if method else scenario.forecast.quantile,
        progress=part(progress, 0.0, 0.7),
        quantiles=_quantiles(scenario, hardware, plain=method is not None),
        at_once=periods == ALL,
    )
    names = list(dict.fromkeys(one.key.tier for one in forecasts)) or [INTERACTIVE]
    shape = (len(window.period_starts_s), *current.shape[:2], window.bins_per_period)
    tiers = np.zeros((len(names) + 1, *shape))
    for one in forecasts:
        m, r = traffic.models.index(one.key.model), traffic.regions.index(one.key.region)
        rate = one.planned.reshape(shape[0], shape[3]) / window.bin_s
        tiers[names.index(one.key.tier), :, m, r] = rate
    niw = _deferrable_tps(hardware, traffic, window)
    if periods == ALL:  # of what is known before the first period
        niw = np.broadcast_to(niw[:1], niw.shape)
    tiers[-1] = scenario.forecast.niw_buffer * niw[..., None]
    load = tiers.sum(axis=0)
    apart = len(names) > 1
    plan = plan_load(
        scenario,
        hardware,
        window,
        sizes,
        load,
        current=current,
        progress=part(progress, 0.7, 1.0),
        clock=traffic.clock,
        lengths=traffic.lengths,
        tiers=(*names, DEFERRABLE) if apart else (),
        tier_tps=tiers if apart else None,
        periods=periods,
    )
    known = ((*names, DEFERRABLE), tiers) if apart else ((), None)
    return Planned(plan, forecasts, load, *known)


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
    lengths: Sequence[Lengths] | None = None,
    tiers: tuple[str, ...] = (),
    tier_tps: FloatArray | None = None,
    periods: str | None = None,
) -> ScalingPlan:
    """Plan every period for ``load_tps`` ``[p, l, r, w]``, which ``tier_tps`` ``[k, p, l, r, w]``
    adds up to; raises Infeasible with the conflict. Without ``lengths`` energy is counted at the
    GPUs' constants."""
    names = tuple(f"the period from {words_of(float(t), clock)}" for t in window.period_starts_s)
    problems = [
        problem(
            scenario, hardware, sizes, current, tps, window.period_s, lengths=lengths, start_s=start
        )
        for start, tps in zip(window.period_starts_s, load_tps, strict=True)
    ]
    asked = Asked(problems, names, window, tiers, tier_tps)
    if (periods or scenario.objective.periods) == ALL:
        return plan_together(scenario, hardware, asked, progress)
    return plan_apart(scenario, hardware, asked, progress)


def _quantiles(
    scenario: Scenario, hardware: Hardware, *, plain: bool
) -> dict[str, float | None] | None:
    """By interactive tier, where the scenario tells tiers apart."""
    given, worth = scenario.forecast.quantiles, scenario.objective.priorities.tiers
    if not given and not worth:
        return None
    usual = None if plain else scenario.forecast.quantile
    return {
        tier.name: usual if plain else given.get(tier.name, usual)
        for tier in hardware.tiers
        if not tier.deferrable
    }


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


def schedule(plan: ScalingPlan, window: Window) -> tuple[FloatArray, IntArray]:
    """When to ask for what: times (seconds from the window's start) and targets ``[t, l, r, g]``.

    Each period's instances are asked for ``lead_s`` before it begins, so that they are up then,
    and held until it ends: at any time the largest target among the period that runs and those
    already asked for. Requests fall on a control instant, never before what they rest on is known.
    """
    times, wanted = _in_force(plan, window)
    return times, _most(plan.target, wanted)


def scheduled_lending(plan: ScalingPlan, window: Window) -> IntArray | None:
    """How many of the targets of ``schedule`` are lent out, ``[t, l, r, g]``: those that neither
    the period that runs nor one already asked for serves with. None where nothing may be lent."""
    if plan.lent is None:
        return None
    _, wanted = _in_force(plan, window)
    return _most(plan.target, wanted) - _most(plan.target - plan.lent, wanted)


def _in_force(plan: ScalingPlan, window: Window) -> tuple[FloatArray, BoolArray]:
    """Times at which what is asked for changes, and the periods it is asked for, ``[t, p]``."""
    starts = plan.period_start_s - window.start_s
    on_control = np.floor((starts - window.lead_s) / CONTROL_S + 1e-9) * CONTROL_S
    asked = np.maximum(on_control, window.origins_s - window.start_s).clip(0.0, starts)
    times = np.unique(np.concatenate([starts, asked]))
    ends = np.append(starts[1:], np.inf)
    return times, (asked <= times[:, None]) & (times[:, None] < ends)


def _most(counts: IntArray, wanted: BoolArray) -> IntArray:
    most: IntArray = np.where(wanted[..., None, None, None], counts, 0).max(axis=1)
    return most


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
