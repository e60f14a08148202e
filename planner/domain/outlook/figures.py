"""Extend the plans of a representative week to the months of a horizon."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.outlook.calendar import Month
from planner.domain.outlook.commitments import Commitment, GpuUse
from planner.inputs.scenario.build import Hardware
from planner.optimizer.problem import ScalingPlan
from simulation.arrays import FloatArray, IntArray

STATES = ("optimal", "feasible", "timeout", "infeasible")  # of a solver, the best first


@dataclass(frozen=True, slots=True, eq=False)
class PlannedMonth:
    """A month with the plan of its representative week."""

    month: Month
    growth: float  # factor on the demand of the week
    occurrences: FloatArray  # [period of the week] how often it is in the month
    plan: ScalingPlan | None  # None: infeasible, see ``conflict``
    conflict: str = ""

    def mean(self, replicas: IntArray) -> float:
        """Return the mean over the month of ``replicas [period of the week]``."""
        return float(self.occurrences @ replicas / self.occurrences.sum())


@dataclass(frozen=True, slots=True)
class MonthFigures:
    """The figures of a month; None if it has no feasible plan.

    ``cost_usd`` is at on-demand and spot prices. Its part for starting replicas is ``starts_usd``.
    ``cost_committed_usd`` is the cost with the recommended commitments.
    """

    month: str
    days: float
    growth: float
    status: str
    gpu_hours: float | None = None
    cost_usd: float | None = None
    on_demand_usd: float | None = None
    spot_usd: float | None = None
    starts_usd: float | None = None
    cost_committed_usd: float | None = None
    energy_kwh: float | None = None
    carbon_kg: float | None = None
    mean_replicas: float | None = None
    peak_replicas: int | None = None
    peak_gpus: int | None = None
    conflict: str = ""


@dataclass(frozen=True, slots=True)
class PoolMonth:
    """The figures of a pool in a month."""

    month: str
    model: str
    region: str
    arrangement: str
    market: str
    mean_replicas: float
    least_replicas: int
    peak_replicas: int
    gpu_hours: float
    cost_usd: float


def month_figures(
    planned: PlannedMonth, hardware: Hardware, commitments: Sequence[Commitment]
) -> MonthFigures:
    """Return the figures of a month: sums over the week's periods, each times its occurrences.

    With ``commitments``, a second cost includes committed GPUs, which are paid all month, used or
    not. A month without a feasible plan has only its conflict.
    """
    month, plan, growth = planned.month, planned.plan, planned.growth
    days = month.hours / 24
    if plan is None:
        return MonthFigures(month.label, days, growth, "infeasible", conflict=planned.conflict)
    hours = planned.occurrences * (plan.period_s / 3600)  # by period of the week

    def total(name: str) -> float:
        """Return the sum over the month of a total per hour of the plan."""
        return float(hours @ np.array([getattr(window.totals, name) for window in plan.windows]))

    cost_usd, committed_usd = total("usd"), None
    if commitments:
        committed_usd = cost_usd + _commitments_extra_usd(plan, hours, hardware, commitments)
    gpus = _gpus_in_use(plan)
    usd_per_hour = gpus * _gpu_prices(plan, hardware)[:, None]  # [period, model, region, column]
    usd_by_column = np.einsum("p,plrg->g", hours, usd_per_hour)  # by GPU column
    spot_usd = float(usd_by_column[hardware.spot].sum())
    on_demand_usd = float(usd_by_column[~hardware.spot].sum())
    replicas, all_gpus = plan.target.sum(axis=(1, 2, 3)), gpus.sum(axis=(1, 2, 3))  # by period
    is_in_month = planned.occurrences > 0  # by period of the week
    conflicts = [window.conflict for window in plan.windows if window.conflict]
    return MonthFigures(
        month=month.label,
        days=days,
        growth=growth,
        status=max((window.status for window in plan.windows), key=STATES.index),
        gpu_hours=total("gpu_hours"),
        cost_usd=cost_usd,
        on_demand_usd=on_demand_usd,
        spot_usd=spot_usd,
        starts_usd=cost_usd - on_demand_usd - spot_usd,
        cost_committed_usd=committed_usd,
        energy_kwh=total("kwh"),
        carbon_kg=total("kg"),
        mean_replicas=planned.mean(replicas),
        peak_replicas=int(replicas[is_in_month].max()),
        peak_gpus=int(all_gpus[is_in_month].max()),
        conflict=conflicts[0] if conflicts else "",
    )


def _commitments_extra_usd(
    plan: ScalingPlan, hours: FloatArray, hardware: Hardware, commitments: Sequence[Commitment]
) -> float:
    """Return how many dollars ``commitments`` add to a plan's cost; negative: they save money.

    Committed GPUs are paid all the time, and replace the on-demand GPUs in use, up to their number.
    ``hours [period]`` is the time of each period of the plan in the month.
    """
    gpus, prices = _gpus_in_use(plan), _gpu_prices(plan, hardware)  # prices [period, region, GPU]
    regions = [region.name for region in hardware.regions]
    # Spot columns have the names of the same GPUs, but commitments replace GPUs on demand.
    gpu_names = ["" if hardware.spot[g] else gpu.name for g, gpu in enumerate(hardware.gpus)]
    extra_usd = 0.0
    for row in commitments:
        used = _gpus_of_type(gpus, hardware, row.region, row.gpu)  # [period]
        on_demand_usd = prices[:, regions.index(row.region), gpu_names.index(row.gpu)]
        extra_usd += row.committed_usd_per_gpu_hour * row.gpus * float(hours.sum())
        extra_usd -= float(hours @ (np.minimum(used, row.gpus) * on_demand_usd))
    return extra_usd


def pool_months(planned: PlannedMonth, hardware: Hardware) -> tuple[PoolMonth, ...]:
    """Return the figures of all pools that have a replica in some period of the month."""
    plan, rows = planned.plan, []
    if plan is None:
        return ()
    hours = planned.occurrences * (plan.period_s / 3600)
    prices = _gpu_prices(plan, hardware)
    for m, r, g in hardware.model_region_gpu:
        counts = plan.target[:, m, r, g]
        occurring = counts[planned.occurrences > 0]
        if not occurring.any():
            continue
        gpus = int(plan.gpus_per_instance[m, g])
        row = PoolMonth(
            month=planned.month.label,
            model=hardware.models[m].name,
            region=hardware.regions[r].name,
            arrangement=hardware.arrangement(m, g),
            market=hardware.market(g),
            mean_replicas=planned.mean(counts),
            least_replicas=int(occurring.min()),
            peak_replicas=int(occurring.max()),
            gpu_hours=gpus * float(hours @ counts),
            cost_usd=gpus * float(hours @ (counts * prices[:, r, g])),
        )
        rows.append(row)
    return tuple(rows)


def gpu_uses(planned: Sequence[PlannedMonth], hardware: Hardware) -> tuple[GpuUse, ...]:
    """Return the on-demand GPUs in use by region and type, over all months that have a plan.

    All models count together, because a commitment covers any model.
    """
    hours, in_use = [], []  # by month: how many hours each period stands for, and its GPUs
    for month in planned:
        if month.plan is not None:
            hours.append(month.occurrences * (month.plan.period_s / 3600))
            in_use.append(_gpus_in_use(month.plan))
    if not in_use:
        return ()
    all_gpus, all_hours = np.concatenate(in_use), np.concatenate(hours)
    uses = []
    for r, region in enumerate(hardware.regions):
        for gpu, g in _owned_columns(hardware).items():
            used = _gpus_of_type(all_gpus, hardware, region.name, gpu)
            if used.any():
                price = float(hardware.usd_per_gpu_hour[r, g])
                uses.append(GpuUse(region.name, gpu, used, all_hours, price))
    return tuple(uses)


def _owned_columns(hardware: Hardware) -> dict[str, int]:
    """Return the first owned GPU column of each GPU type."""
    columns: dict[str, int] = {}
    for g, column in enumerate(hardware.columns):
        if not column.spot:
            columns.setdefault(hardware.gpus[g].name, g)
    return columns


def _gpu_prices(plan: ScalingPlan, hardware: Hardware) -> FloatArray:
    """Return the price of a GPU, in dollars per hour ``[period, region, GPU column]``."""
    return np.stack([hardware.gpu_usd(start_s, plan.period_s) for start_s in plan.period_start_s])


def _gpus_in_use(plan: ScalingPlan) -> FloatArray:
    """Return the GPUs that each period of a plan uses, ``[period, model, region, GPU column]``."""
    return np.asarray(plan.target * plan.gpus_per_instance[None, :, None, :], np.float64)


def _gpus_of_type(gpus: FloatArray, hardware: Hardware, region: str, gpu: str) -> FloatArray:
    """Return the on-demand GPUs in use of type ``gpu`` in a region, by period.

    ``gpus [period, model, region, GPU column]`` are all GPUs in use.
    """
    r = [row.name for row in hardware.regions].index(region)
    columns = [
        g
        for g, column in enumerate(hardware.columns)
        if not column.spot and hardware.gpus[g].name == gpu
    ]
    in_region = gpus[:, :, r]  # [period, model, GPU column]
    return np.asarray(in_region[:, :, columns].sum(axis=(1, 2)), np.float64)
