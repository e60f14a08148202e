"""What one more GPU, millisecond of SLO or point of quantile would be worth to a plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import NormalDist
from typing import Any

import numpy as np
import scipy

from planner.errors import PlannerError
from planner.optimizer import solve_window
from planner.optimizer.problem import FEASIBLE, OPTIMAL, PlanningProblem, WindowPlan
from planner.optimizer.worth import Worth, again, worth_of_capacity
from planner.studies.columns import NUMBER, TEXT, Column, Columns
from planner.studies.plain import COLUMNS
from planner.studies.planning.inputs import PlanInput, Planned
from planner.studies.planning.program import problem
from planner.studies.progress import Progress, part
from planner.studies.sizing.sizing import size
from simulation.errors import SimulationError
from simulation.fleet import Tier

LOOSER = 0.1  # of a limit: the move by which a millisecond is priced
POINT = 0.01
RESOLVE_S = 5.0  # at most, for each move
TEN_TO_NINETY = 2 * NormalDist().inv_cdf(
    0.9
)  # standard deviations, from the 10% to the 90% quantile
RE_SOLVED = "planned again with the limit moved"
LIMITS = {"ttft_s": "TTFT", "tbt_s": "TBT"}


WORTH = Columns(
    (
        Column("family", TEXT, "of limits"),
        Column("what", TEXT, "is moved"),
        Column("step", NUMBER, "by how much"),
        Column("unit", TEXT, "of the step"),
        Column("saves", NUMBER, "an hour, of what the objective charges"),
        Column("doubt", NUMBER, "half the width within which that is proven"),
        Column("per_unit", NUMBER, "saved per unit of the step",
               lambda row: None if row.saves is None else row.saves / row.step),
        Column("relaxation", NUMBER, "the same by the linear relaxation", attrgetter("relaxed")),
        Column("basis", TEXT, "how it was found", lambda row: RE_SOLVED),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanWorth:
    """Of the dearest period: what it takes an hour, and what moving each limit would save."""

    period: float
    unit: str
    objective_per_hour: float
    rows: tuple[Worth, ...] = field(metadata={COLUMNS: WORTH})


@dataclass(frozen=True, slots=True, eq=False)
class _Dearest:
    """The period that costs most, planned by itself from the fleet before it."""

    period: int
    problem: PlanningProblem
    plan: WindowPlan
    options: dict[str, object]


def worth_of(
    inputs: PlanInput, planned: Planned, seed: int, progress: Progress
) -> PlanWorth | None:
    """The dearest period's plan made again with one thing moved at a time: capacity that is used
    up, every tier's TTFT and TBT, the quantile. None where that period has no plan by itself, or
    where ``reroute`` limits what may be sent."""
    settings = inputs.settings
    if settings.reroute is not None:
        return None  # the period by itself would not keep to the ways that are open
    dearest = _dearest(inputs, planned)
    if dearest is None:
        return None
    progress(0.1, "What more GPUs would be worth")
    limit = min(RESOLVE_S, settings.time_limit_s)
    moved = list(
        worth_of_capacity(
            dearest.problem,
            dearest.plan,
            solver=settings.solver,
            gap=settings.gap,
            time_limit_s=limit,
        )
    )
    for done, limit_name in enumerate(LIMITS):
        row = _looser(
            inputs, dearest, limit_name, seed, part(progress, 0.2 + 0.35 * done, 0.55 + 0.35 * done)
        )
        moved += [row] if row else []
    quantile = _quantile(inputs, planned, dearest)
    moved += [quantile] if quantile else []
    return PlanWorth(
        period=float(planned.plan.period_start_s[dearest.period]),
        unit=settings.unit,
        objective_per_hour=dearest.plan.objective_usd,
        rows=tuple(moved),
    )


def _dearest(inputs: PlanInput, planned: Planned) -> _Dearest | None:
    plan, settings = planned.plan, inputs.settings
    period = int(np.argmax([window.objective_usd for window in plan.windows]))
    current = plan.initial if period == 0 else plan.windows[period - 1].target
    window = problem(
        replace(inputs.of(period), current=current),
        planned.load.tps[period],
        plan.period_s,
        float(plan.period_start_s[period]),
    )
    options: dict[str, object] = {
        "solver": settings.solver,
        "gap": settings.gap,
        "time_limit_s": min(RESOLVE_S, settings.time_limit_s),
    }
    alone = solve_window(window, **options)  # type: ignore[arg-type]
    return _Dearest(period, window, alone, options) if alone.status in (OPTIMAL, FEASIBLE) else None


def _looser(
    inputs: PlanInput, dearest: _Dearest, field: str, seed: int, progress: Progress
) -> Worth | None:
    """Every interactive tier's limit of one kind by a tenth looser: sized again, planned again."""
    stated = [getattr(tier, field) for tier in inputs.hardware.tiers if not tier.deferrable]
    limits = [seconds for seconds in stated if seconds is not None]
    if not limits:
        return None
    tiers = tuple(_loosened(tier, field) for tier in inputs.hardware.tiers)
    try:
        hardware = replace(inputs.hardware, tiers=tiers)
        traffic = inputs.traffic
        sizes = size(hardware, traffic.lengths, seed, progress, shared=traffic.shared)
    except (PlannerError, SimulationError):
        return None
    step = 1000 * LOOSER * min(limits)
    # A limit that does not bind changes nothing; what sizing finds lower then is its own noise.
    theta = np.maximum(sizes.theta_tps, inputs.sizes.theta_tps)
    pools = np.maximum(sizes.pool_tps, inputs.sizes.pool_tps)
    return again(
        replace(dearest.problem, theta_tps=theta, pool_tps=pools),
        dearest.plan,
        family="slo",
        what=f"{LIMITS[field]} limits {LOOSER:.0%} looser ({step:,.0f} ms of the strictest)",
        step=step,
        unit="ms",
        options=dearest.options,
        before=dearest.problem,
    )


def _loosened(tier: Tier, field: str) -> Tier:
    seconds = getattr(tier, field)
    if tier.deferrable or seconds is None:
        return tier
    longer: dict[str, Any] = {field: seconds * (1 + LOOSER)}
    return replace(tier, **longer)


def _quantile(inputs: PlanInput, planned: Planned, dearest: _Dearest) -> Worth | None:
    """A point of quantile more, errors of the forecast taken to be normal between its 10% and 90%
    quantiles."""
    traffic = inputs.traffic
    more = np.zeros_like(dearest.problem.demand_tps)
    for forecast in planned.forecasts:
        level = 0.5 if forecast.height.level is None else forecast.height.level
        if level + POINT >= 1:
            return None
        spread = (
            forecast.height.times * np.maximum(0.0, forecast.high - forecast.low) / TEN_TO_NINETY
        )
        rise = (scipy.special.ndtri(level + POINT) - scipy.special.ndtri(level)) * spread
        place = traffic.models.index(forecast.key.model), traffic.regions.index(forecast.key.region)
        by_period = rise.reshape(len(planned.load.tps), -1) / inputs.window.bin_s
        more[place] += by_period[dearest.period]
    if not more.any():
        return None
    return again(
        replace(dearest.problem, demand_tps=dearest.problem.demand_tps + more),
        dearest.plan,
        family="quantile",
        what="One point of quantile more (normal errors assumed)",
        step=1.0,
        unit="point",
        options=dearest.options,
        before=dearest.problem,
    )
