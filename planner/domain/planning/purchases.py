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
from planner.optimizer.problem import ScalingPlan, Shift
from planner.optimizer.reservations import gpus_in_use
from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Region

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
    spot_types = {column.gpu for column in hardware.columns if column.spot}
    if plan.reserved is None and not spot_types:
        return ()
    horizon = Periods.of(inputs, planned_window.load).horizon_of_all()
    if not plan.together:  # then no GPUs are in use for replicas that start
        horizon = replace(horizon, lead=0)
    term, period_s = inputs.settings.objective.reserve or "", plan.period_s
    prices = hardware.reserved_prices(term, plan.period_start_s, period_s)
    # Reserved GPUs are used first, and paid in every period. All arrays from here on are
    # [period, region, GPU type].
    used = gpus_in_use(horizon, plan.target)
    reserved = np.broadcast_to(0 if plan.reserved is None else plan.reserved, used.shape)
    reserved_usd, on_demand_usd = (np.broadcast_to(usd, used.shape) for usd in prices)
    reserved_used = np.minimum(used, reserved)
    others = used - reserved_used
    rows = []
    for r, t in np.ndindex(*used.shape[1:]):
        all_periods = slice(None), r, t
        place = hardware.regions[r].name, hardware.gpu_types[t].name
        market = SPOT if t in spot_types else ON_DEMAND
        rows += _purchase(
            place, RESERVED, reserved[all_periods], reserved_used[all_periods],
            reserved_usd[all_periods], period_s,
        )  # fmt: skip
        others_paid = others[all_periods]  # without a reservation, only GPUs in use are paid
        rows += _purchase(
            place, market, others_paid, others_paid, on_demand_usd[all_periods], period_s
        )
    return tuple(rows)


def _purchase(
    place: tuple[str, str],
    market: str,
    paid: IntArray,
    in_use: IntArray,
    usd_per_hour: FloatArray,
    period_s: float,
) -> list[Purchase]:
    """Return the purchase of GPUs in a place (region, GPU type) on a market; [] if there are none.

    ``paid`` and ``in_use`` are GPUs, and ``usd_per_hour`` is the price of one, all ``[period]``.
    """
    hours = period_s / 3600
    paid_hours = float(paid.sum()) * hours
    if not paid_hours:  # then the price may be infinite: not offered
        return []
    usd = float(paid @ usd_per_hour) * hours
    return [
        Purchase(
            *place,
            market=market,
            gpus=int(paid.max()),
            gpu_hours=paid_hours,
            used_share=float(in_use.sum()) * hours / paid_hours,
            usd_per_gpu_hour=usd / paid_hours,
            usd=usd,
        )
    ]


def shift_figures(inputs: PlanInput, planned_window: PlannedWindow) -> ShiftFigures | None:
    """Return when the plan does deferrable work, and what that saves; None if it moves none."""
    plan, shift = planned_window.plan, planned_window.plan.shift
    if shift is None:
        return None
    cost = sum(window.objective_usd for window in plan.windows) * plan.period_s / 3600
    cost_on_arrival = _cost_on_arrival(inputs, shift)
    moved = np.maximum(shift.tokens - shift.arrived, 0.0).sum()
    return ShiftFigures(
        bound=shift.bound,
        over_bound=cost / shift.bound if shift.bound > 0 else None,
        on_arrival=cost_on_arrival,
        saving=1 - cost / cost_on_arrival if cost_on_arrival and cost_on_arrival > 0 else None,
        moved_share=float(moved / max(1e-12, shift.arrived.sum())),
        hours=tuple(
            _work_of_period(plan, shift, p, r, region)
            for p in range(len(plan.period_start_s))
            for r, region in enumerate(inputs.hardware.regions)
        ),
    )


def _work_of_period(
    plan: ScalingPlan, shift: Shift, p: int, r: int, region: Region
) -> DeferrableWork:
    """Return the deferrable tokens that arrive and are planned in period ``p`` and a region."""
    start_s = float(plan.period_start_s[p])
    planned, arrived = shift.tokens[p, :, r], shift.arrived[p, :, r]  # by model
    return DeferrableWork(
        period=moment(start_s),
        region=region.name,
        arrived=float(arrived.sum()),
        planned=float(planned.sum()),
        usd_per_kwh=electricity_usd(region, start_s, plan.period_s),
        g_per_kwh=carbon_g(region, start_s, plan.period_s),
        by_model=dict(zip(plan.models, planned.tolist(), strict=True)),
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
