"""Define the result figures of a plan: totals, decisions, binding constraints and load splits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np

from planner.domain.planning.inputs import PlanInput, PlannedWindow
from planner.domain.planning.marginal_values import MarginalValues
from planner.domain.planning.power_limits import PowerUse, power_use
from planner.domain.planning.program import problem
from planner.domain.planning.purchases import Purchase, ShiftFigures, purchases, shift_figures
from planner.domain.planning.spare_replicas import PlanSpare
from planner.domain.replicas import Replica, replica_of
from planner.domain.serialise import KEY, MERGED, OPTIONAL, moment
from planner.domain.sizing.sizing import Sizes
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.columns import SHOWN
from planner.optimizer.pools import pool_capacity
from planner.optimizer.problem import FEASIBLE, OPTIMAL, TIMEOUT, Binding, ScalingPlan
from simulation.arrays import IntArray, ratio

WORST_FIRST = TIMEOUT, FEASIBLE, OPTIMAL  # statuses of the solver
ENERGY = (
    "rated-load power at all times, with host and PUE "
    "(assumed). The simulation computes power by load"
)


@dataclass(frozen=True, slots=True)
class Decision:
    """The planned replicas of one pool in one period, and the change from the period before."""

    period: datetime
    region: str
    replica: Replica = field(metadata={MERGED: True})
    current: int  # replicas in the period before
    delta: int
    target: int


Span = tuple[float, float] | None  # (least, most)


@dataclass(frozen=True, slots=True)
class Limit:
    """A binding constraint, the number of periods in which it binds, and its figures there.

    ``replicas``, and ``need_tps`` and ``served_tps`` in input tokens/s, are the least and the most
    of these periods. They are None for a constraint without a demand. ``model``, ``region`` and
    ``role`` are those of the pools that it limits, as in ``Binding``.
    """

    family: str
    where: str
    sentence: str
    periods: int
    model: str | None
    region: str | None
    role: str
    replicas: Span = field(default=None, metadata={OPTIONAL: True})
    need_tps: Span = field(default=None, metadata={OPTIONAL: True})
    served_tps: Span = field(default=None, metadata={OPTIONAL: True})


@dataclass(frozen=True, slots=True)
class CapPlan:
    """The plan of the window with one power cap for each role of replicas.

    Figures are None if it is infeasible; ``conflict`` says why. Latencies are those of a replica at
    its largest rate within the SLO, the highest of any model. ``slo_attainment`` by tier and
    ``simulated_kwh`` come from a replay, and are None without one.
    """

    mixed: float | None  # share of TDP; 1: no cap; None: no such pools
    prefill: float | None
    decode: float | None
    usd: float | None = None
    kwh: float | None = None
    gpu_hours: float | None = None
    peak_kw: float | None = None  # peak power of all replicas at rated load
    replicas: int | None = None  # most at once
    ttft_ms: float | None = None
    tbt_ms: float | None = None
    slo_attainment: Mapping[str, float | None] | None = None
    simulated_kwh: float | None = None
    conflict: str = ""


@dataclass(frozen=True, slots=True)
class PlanTotals:
    """Cost, energy and changes of the plan over the whole window."""

    usd: float
    gpu_hours: float
    kwh: float
    carbon_kg: float
    starts: int
    stops: int
    energy_basis: str = ENERGY
    embodied_kg: float | None = None  # CO2e of making the hardware, not part of carbon_kg


@dataclass(frozen=True, slots=True)
class UnservedDemand:
    """The unserved demand of a tier and model: its highest rate, its sum, and its periods."""

    tier: str
    model: str
    input_tps: float
    input_tokens: float
    periods: int


@dataclass(frozen=True, slots=True)
class ReroutedTraffic:
    """The traffic sent from a region to another one at the peak of a period, the highest of all.

    ``share`` is its largest share of the home region's demand, summed over the peaks of its models.
    """

    home: str = field(metadata={KEY: "from"})
    to: str
    input_tps: float
    share: float


@dataclass(frozen=True, slots=True)
class Split:
    """A variant's share of a model's load in a region.

    A variant is a GPU type with a parallelism and precision. ``share`` is the mean over the periods
    that run several variants, ``least`` and ``most`` are the range.
    """

    model: str
    region: str
    arrangement: str
    role: str
    share: float
    least: float
    most: float
    periods: int


@dataclass(frozen=True, slots=True, eq=False)
class PlanFigures:
    """The figures of a plan over all periods.

    Dollars are of the whole window. ``bound`` is the lower bound on the objective. If periods are
    planned one by one, it is the sum of their bounds, each for the given fleet before the period.
    That sum is no bound for the whole window.
    """

    status: str
    objective: float
    fleet_cost: float
    bound: float
    gap: float  # gap, as a share of fleet cost
    solver: str
    build_seconds: float
    solve_seconds: float
    decisions: tuple[Decision, ...]
    binding: tuple[Limit, ...]
    minimise: str
    unit: str
    periods: str
    totals: PlanTotals
    conflicts: tuple[str, ...]
    limited: str  # method of choosing replicas under a limit, in words; "" without a limit
    unserved: tuple[UnservedDemand, ...]
    lent_gpu_hours: float | None
    rerouted: tuple[ReroutedTraffic, ...]
    split: tuple[Split, ...]
    # All but ``power`` only in runs of kind plan.
    worth: MarginalValues | None = field(default=None, metadata={OPTIONAL: True})
    spare: PlanSpare | None = field(default=None, metadata={OPTIONAL: True})
    caps: tuple[CapPlan, ...] | None = field(default=None, metadata={OPTIONAL: True})
    power: tuple[PowerUse, ...] | None = field(default=None, metadata={OPTIONAL: True})
    mix: tuple[Purchase, ...] | None = field(default=None, metadata={OPTIONAL: True})
    shift: ShiftFigures | None = field(default=None, metadata={OPTIONAL: True})


def window_figures(
    inputs: PlanInput,
    planned: PlannedWindow,
    worth: MarginalValues | None = None,
    spare: PlanSpare | None = None,
    caps: tuple[CapPlan, ...] = (),
) -> PlanFigures:
    """Return the figures of a planned window for a result, with purchases and shifted work.

    ``worth`` is what one more unit of each limit saves, ``spare`` the spare replicas, and ``caps``
    the plans by power cap.
    """
    return replace(
        plan_figures(inputs, planned.plan),
        worth=worth,
        spare=spare,
        caps=caps or None,
        mix=purchases(inputs, planned) or None,
        shift=shift_figures(inputs, planned),
    )


def plan_figures(inputs: PlanInput, plan: ScalingPlan) -> PlanFigures:
    """Return the figures of a plan that follow from the plan alone."""
    hardware, settings = inputs.hardware, inputs.settings
    windows, hours = plan.windows, plan.period_s / 3600  # figures of windows are per hour
    statuses = {window.status for window in windows}
    fleet_cost = sum(window.fleet_usd for window in windows) * hours
    objective = sum(window.objective_usd for window in windows) * hours
    bound = sum(window.bound_usd for window in windows) * hours
    # The problem only gives the watts of replicas here, which need no demand.
    no_demand = np.zeros((*plan.initial.shape[:2], 1))
    power = power_use(problem(inputs, no_demand, plan.period_s), plan.target)
    return PlanFigures(
        status=next((status for status in WORST_FIRST if status in statuses), OPTIMAL),
        objective=objective,
        fleet_cost=fleet_cost,
        bound=bound,
        gap=(objective - bound) / fleet_cost if fleet_cost else 0.0,
        solver=windows[0].solver,
        build_seconds=sum(window.build_seconds for window in windows),
        solve_seconds=sum(window.solve_seconds for window in windows),
        decisions=decisions(plan, hardware),
        binding=_binding_limits(plan),
        minimise=settings.minimise,
        unit=settings.unit,
        periods="all" if plan.together else "one",
        totals=_plan_totals(plan, hardware),
        conflicts=tuple(dict.fromkeys(window.conflict for window in windows if window.conflict)),
        limited=plan.policy,
        unserved=_unserved_rows(plan),
        lent_gpu_hours=None if plan.lent is None else _gpu_hours(plan, plan.lent),
        rerouted=_rerouted_rows(plan),
        split=load_split(plan, hardware, inputs.sizes),
        power=power or None,
    )


def _gpu_hours(plan: ScalingPlan, replicas: IntArray) -> float:
    """Return the GPU-hours of ``replicas [period, model, region, GPU column]``."""
    gpus = replicas * plan.gpus_per_instance[None, :, None, :]
    return float(gpus.sum() * plan.period_s / 3600)


def _plan_totals(plan: ScalingPlan, hardware: Hardware) -> PlanTotals:
    """Return cost, energy and changes of a plan over all its periods."""
    by_window = [window.totals for window in plan.windows]
    hours = plan.period_s / 3600
    gpu_hours = sum(totals.gpu_hours for totals in by_window) * hours
    return PlanTotals(
        usd=sum(totals.usd for totals in by_window) * hours,
        gpu_hours=gpu_hours,
        kwh=sum(totals.kwh for totals in by_window) * hours,
        carbon_kg=sum(totals.kg for totals in by_window) * hours,
        starts=sum(totals.starts for totals in by_window),
        stops=sum(totals.stops for totals in by_window),
        embodied_kg=gpu_hours * hardware.embodied_g_per_gpu_hour / 1000,
    )


def decisions(plan: ScalingPlan, hardware: Hardware) -> tuple[Decision, ...]:
    """Return the decisions of a plan, by period and within each period by pool."""
    pools = hardware.model_region_gpu
    replicas = {(m, g): replica_of(hardware, m, g) for m, _, g in pools}
    rows = []
    counts_before = plan.initial  # [model, region, GPU column]
    for start_s, counts in zip(plan.period_start_s, plan.target, strict=True):
        for m, r, g in pools:
            current, target = int(counts_before[m, r, g]), int(counts[m, r, g])
            row = Decision(
                period=moment(start_s),
                region=plan.regions[r],
                replica=replicas[m, g],
                current=current,
                delta=target - current,
                target=target,
            )
            rows.append(row)
        counts_before = counts
    return tuple(rows)


def _binding_limits(plan: ScalingPlan) -> tuple[Limit, ...]:
    """Return each binding constraint once, with its number of periods, most frequent first."""
    by_family_and_place: dict[tuple[str, str], list[Binding]] = {}
    for window in plan.windows:
        for binding in window.binding:
            by_family_and_place.setdefault((binding.family, binding.where), []).append(binding)
    limits = []
    for (family, where), bindings in by_family_and_place.items():
        limit = Limit(
            family=family,
            where=where,
            sentence=bindings[0].sentence,
            periods=len(bindings),
            model=bindings[0].model,
            region=bindings[0].region,
            role=SHOWN[bindings[0].role],
            replicas=_span(binding.replicas for binding in bindings),
            need_tps=_span(binding.need_tps for binding in bindings),
            served_tps=_span(binding.served_tps for binding in bindings),
        )
        limits.append(limit)
    return tuple(sorted(limits, key=lambda limit: -limit.periods))


def _span(values: Iterable[float | None]) -> Span:
    """Return the least and the most of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def load_split(plan: ScalingPlan, hardware: Hardware, sizes: Sizes) -> tuple[Split, ...]:
    """Return how a model's load in a region is shared among its variants (GPU types, precisions).

    Requests go to pools with free capacity, so load is split in proportion to capacity. Shares are
    means over the periods that run several variants. Prefill and decode replicas are compared only
    with variants of the same stage.
    """
    splits = []
    pool_tps = pool_capacity(sizes.theta_tps, sizes.pool_tps, plan.target)
    stages = hardware.stages  # of each GPU column
    for m, r in np.ndindex(len(plan.models), len(plan.regions)):
        for stage in np.unique(stages):
            # Capacity of the columns of this stage, [period, GPU column].
            capacity = np.where(stages == stage, pool_tps[:, m, r], 0.0)
            runs_several = (capacity > 0).sum(axis=1) > 1  # [period]
            shares = capacity[runs_several]
            shares = shares / shares.sum(axis=1, keepdims=True)
            for g in np.flatnonzero(shares.any(axis=0)).tolist():
                row = Split(
                    model=plan.models[m],
                    region=plan.regions[r],
                    arrangement=hardware.arrangement(m, g),
                    role=hardware.role(g),
                    share=float(shares[:, g].mean()),
                    least=float(shares[:, g].min()),
                    most=float(shares[:, g].max()),
                    periods=len(shares),
                )
                splits.append(row)
    return tuple(splits)


def _unserved_rows(plan: ScalingPlan) -> tuple[UnservedDemand, ...]:
    """Return the unserved demand of each tier and model that has any."""
    if plan.unserved_tps is None:
        return ()
    rows = []
    for tier, m in np.argwhere(plan.unserved_tps.any(axis=0)):
        unserved_tps = plan.unserved_tps[:, tier, m]  # by period
        rows.append(
            UnservedDemand(
                plan.tiers[tier],
                plan.models[m],
                input_tps=float(unserved_tps.max()),
                input_tokens=float(unserved_tps.sum() * plan.period_s),
                periods=int((unserved_tps > 0).sum()),
            )
        )
    return tuple(rows)


def _rerouted_rows(plan: ScalingPlan) -> tuple[ReroutedTraffic, ...]:
    """Return the cross-region traffic of each pair of regions that has any."""
    if plan.rerouted_tps is None:  # [period, home region, other region]
        return ()
    most_tps = plan.rerouted_tps.max(axis=0)  # [home, other]
    demand_tps = plan.demand_tps.sum(axis=1)[:, :, None]  # [period, home, 1]
    most_share = ratio(plan.rerouted_tps, demand_tps, 0.0).max(axis=0)
    return tuple(
        ReroutedTraffic(
            plan.regions[home],
            plan.regions[other],
            input_tps=float(most_tps[home, other]),
            share=float(most_share[home, other]),
        )
        for home, other in np.argwhere(most_tps > 0)
    )
