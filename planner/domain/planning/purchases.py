"""State which GPUs a plan buys, on which market, and when it does deferrable work."""

from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np

from planner.domain.planning.deferred_work import on_arrival
from planner.domain.planning.inputs import PlanInput, PlannedWindow
from planner.domain.planning.period_solver import Periods, solve_periods
from planner.domain.planning.program import carbon_g, electricity_usd
from planner.domain.progress import silent
from planner.domain.serialise import moment
from planner.errors import Infeasible
from planner.optimizer.problem import Shift
from planner.optimizer.reservations import gpus_in_use

RESERVED, ON_DEMAND, SPOT = "reserved", "on_demand", "spot"


@dataclass(frozen=True, slots=True)
class Purchase:
    """GPUs of one type that a plan pays for in a region, on one market.

    Electricity is not included. Reserved GPUs are paid in all hours.
    """

    region: str
    gpu: str
    market: str  # reserved, on_demand or spot
    gpus: int  # highest count
    gpu_hours: float  # paid GPU-hours
    used_share: float  # used share of the paid hours
    usd_per_gpu_hour: float
    usd: float


@dataclass(frozen=True, slots=True)
class DeferrableWork:
    """Deferrable work of a region in one period of the plan, in input tokens."""

    period: datetime
    region: str
    arrived: float  # expected arrivals
    planned: float
    usd_per_kwh: float
    g_per_kwh: float  # carbon intensity
    # planned input tokens of each model; empty in results of earlier releases
    by_model: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ShiftFigures:
    """Deferrable work that a plan moves to other periods or regions, and what that saves.

    ``moved_share`` is the share of the work that is done in another period or region than it
    arrives in. It is a lower estimate: only totals of periods and regions are compared.
    """

    bound: float  # lower bound on the objective, by the linear relaxation
    over_bound: float | None  # objective divided by the bound; None if the bound is 0
    on_arrival: float | None  # objective without moves and without reserved GPUs; None: infeasible
    saving: float | None  # as a share of ``on_arrival``
    moved_share: float
    hours: tuple[DeferrableWork, ...]  # by period and region


def purchases(inputs: PlanInput, planned_window: PlannedWindow) -> tuple[Purchase, ...]:
    """Return the GPUs that the plan buys on each market (on demand, spot, reserved).

    Empty if all GPUs are bought on demand: there are no spot columns and no reserved GPUs.
    """
    hardware, plan = inputs.hardware, planned_window.plan
    spot = {column.gpu for column in hardware.columns if column.spot}
    if plan.reserved is None and not spot:
        return ()
    horizon = Periods.of(inputs, planned_window.load).together()
    if not plan.together:  # then no GPUs are held for replicas that start
        horizon = replace(horizon, lead=0)
    used = gpus_in_use(horizon, plan.target)  # [period, region, GPU type]
    reserved = np.zeros_like(used[0]) if plan.reserved is None else plan.reserved
    term = inputs.settings.objective.reserve or ""
    reserved_usd, on_demand_usd = hardware.reserved_prices(term, plan.period_start_s, plan.period_s)
    hours = plan.period_s / 3600
    rows = []
    for r, t in np.ndindex(*reserved.shape):
        # Reserved GPUs are used first, and paid for in every period. Arrays are by period.
        paid_reserved = np.full(len(used), reserved[r, t])
        others = np.maximum(used[:, r, t] - paid_reserved, 0)
        reserved_price = np.full(len(used), reserved_usd[r, t])
        for market, paid, in_use, price in (
            (RESERVED, paid_reserved, np.minimum(used[:, r, t], paid_reserved), reserved_price),
            (SPOT if t in spot else ON_DEMAND, others, others, on_demand_usd[:, r, t]),
        ):
            paid_hours = float(paid.sum()) * hours
            if not paid_hours:
                continue
            usd = float(paid @ price) * hours
            rows.append(
                Purchase(
                    region=hardware.regions[r].name,
                    gpu=hardware.gpu_types[t].name,
                    market=market,
                    gpus=int(paid.max()),
                    gpu_hours=paid_hours,
                    used_share=float(in_use.sum()) * hours / paid_hours,
                    usd_per_gpu_hour=usd / paid_hours,
                    usd=usd,
                )
            )
    return tuple(rows)


def shift_figures(inputs: PlanInput, planned_window: PlannedWindow) -> ShiftFigures | None:
    """Return when the plan does deferrable work, and what that saves; None if it moves none."""
    plan, shift = planned_window.plan, planned_window.plan.shift
    if shift is None:
        return None
    # In ``shift``, tokens (planned) and arrived are ``[period, model, region]``, bound is in USD.
    hours = plan.period_s / 3600
    cost = sum(window.objective_usd for window in plan.windows) * hours
    cost_on_arrival = _cost_on_arrival(inputs, shift)
    moved = np.maximum(shift.tokens - shift.arrived, 0.0).sum()
    return ShiftFigures(
        bound=shift.bound,
        over_bound=cost / shift.bound if shift.bound > 0 else None,
        on_arrival=cost_on_arrival,
        saving=1 - cost / cost_on_arrival if cost_on_arrival and cost_on_arrival > 0 else None,
        moved_share=float(moved / max(1e-12, shift.arrived.sum())),
        hours=tuple(
            DeferrableWork(
                period=moment(float(start_s)),
                region=region.name,
                arrived=float(shift.arrived[p, :, r].sum()),
                planned=float(shift.tokens[p, :, r].sum()),
                usd_per_kwh=electricity_usd(region, float(start_s), plan.period_s),
                g_per_kwh=carbon_g(region, float(start_s), plan.period_s),
                by_model=dict(zip(plan.models, shift.tokens[p, :, r].tolist(), strict=True)),
            )
            for p, start_s in enumerate(plan.period_start_s)
            for r, region in enumerate(inputs.hardware.regions)
        ),
    )


def _cost_on_arrival(inputs: PlanInput, shift: Shift) -> float | None:
    """Return the cost of a plan that serves the work of ``shift`` when it arrives, in dollars.

    None: there is no such plan.
    """
    try:
        plan = solve_periods(Periods.of(*on_arrival(inputs, shift)), silent)
    except Infeasible:
        return None
    usd_per_hour = sum(window.objective_usd for window in plan.windows)  # summed over the periods
    return usd_per_hour * plan.period_s / 3600
