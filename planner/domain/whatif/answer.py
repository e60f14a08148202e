"""Answer a what-if: plan again with changed values, without a simulation (methods.md E7).

The inputs are the arrays kept with the run. Closed forms adjust the sizes to other limits. The
planning program is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.planning.figures import (
    PlanFigures,
    PlanTotals,
    plan_figures,
)
from planner.domain.planning.inputs import (
    Load,
    PlanInput,
)
from planner.domain.planning.planning import plan_load
from planner.domain.progress import silent
from planner.domain.serialise import moment
from planner.domain.sizing.sizing import Sizes
from planner.domain.traffic.groups import (
    DEFERRABLE,
    INTERACTIVE,
)
from planner.domain.whatif.closed_form_capacity import closed_rps
from planner.domain.whatif.plan_inputs import Basis
from planner.domain.whatif.static_fleet import (
    IN_PROPORTION,
    instances_for,
    taken_by,
    what_lacks,
    with_spare,
)
from planner.errors import Infeasible, ScenarioError
from planner.inputs.scenario.build import (
    Hardware,
    build_hardware,
)
from planner.inputs.scenario.own_hardware import Known
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.settings import settings_of
from planner.optimizer.pools import together
from planner.optimizer.problem import ScalingPlan
from simulation.arrays import FloatArray, IntArray

SOLVE_S = 2.0  # time limit per period: a user waits for the answer
CLOSED_FORMS = (
    "Limits moved: sizes are the simulated ones times what closed forms say that the move changes, "
    "which are off by 2 to 5% (median) against simulation; replay to have them simulated."
)
HELD = (
    "A flat fleet goes by no forecast: the quantile changes what is asked, not how many there are."
)
WAITING = "Work that may wait is planned for as it was, beside what the other quantile leaves."
NEVER = "What is served in time, latencies and the energy really drawn are known only by a replay."


@dataclass(frozen=True, slots=True)
class Moved:
    """Changes beyond those in the scenario."""

    growth: float = 1.0  # factor on demand
    quantile: float | None = None  # forecast percentile to plan for; None: unchanged


@dataclass(frozen=True, slots=True)
class SizeMoved:
    """Capacity of a single replica, after and before the change."""

    model: str
    replica: str
    input_tps: float
    before_tps: float


@dataclass(frozen=True, slots=True)
class PeriodMoved:
    """Replicas, demand and capacity of a period, summed over models and regions, input tokens/s."""

    begins: str
    replicas: int
    demand_tps: float
    capacity_tps: float


@dataclass(frozen=True, slots=True)
class GpusMost:
    """Peak number of GPUs of a type in a region, and of all types together in that region."""

    region: str
    gpu: str
    spot: bool
    most: int
    of_all: int


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """Answer to a what-if. If there is no plan, ``totals`` is None and ``conflict`` says why."""

    status: str
    totals: PlanTotals | None
    gap: float | None
    least: int
    most: int
    periods: tuple[PeriodMoved, ...]
    sizes: tuple[SizeMoved, ...]
    gpus: tuple[GpusMost, ...]
    binding: tuple[str, ...]
    conflict: str
    notes: tuple[str, ...]  # uncertainties, and values that need a replay
    flat: bool = False  # answers for the recommended static fleet, which follows no plan


def what_if(
    basis: Basis, scenario: Scenario, scenario_run: Scenario, known: Known, moved: Moved
) -> WhatIf:
    """Return the plan of ``basis`` for ``scenario``, a changed copy of ``scenario_run``.

    Raises ScenarioError if the change alters the possible replicas: their sizes need a simulation.
    """
    hardware, before = (
        replace(build_hardware(either, known, spot=True), asked=basis.asked)
        for either in (scenario, scenario_run)
    )
    # The kept sizes belong to the models and columns of the run.
    if hardware.columns != before.columns or hardware.models != before.models:
        raise ScenarioError(
            "What replicas there may be has changed: replay this to have them sized."
        )
    settings = settings_of(scenario).plan
    settings = replace(settings, time_limit_s=min(settings.time_limit_s, SOLVE_S))
    sizes, notes = basis.sizes, []
    if hardware.tiers != before.tiers:
        factors, unsure = moved_sizes(basis, before, hardware)
        sizes = _times(sizes, factors)
        notes += [CLOSED_FORMS, *unsure]
        if unable := _unable(basis.sizes, sizes, hardware):
            return _no_plan(unable, _sizes_moved(basis.sizes, sizes, hardware), notes)
    if moved.quantile is not None and basis.waiting_tps.any():
        notes.append(WAITING)
    inputs = PlanInput(settings, hardware, basis.traffic, basis.window, sizes, basis.current)
    own_sizes = _sizes_moved(basis.sizes, sizes, hardware)
    if basis.flat is not None:
        spare = scenario.objective.spare.instances - scenario_run.objective.spare.instances
        own_inputs = replace(inputs, current=basis.flat)
        return _of_flat(basis, basis.flat, own_inputs, moved, spare, notes)
    try:
        plan = plan_load(inputs, load_of(basis, moved), silent)
    except Infeasible as problem:
        return _no_plan(str(problem), own_sizes, notes)
    return _answer(inputs, plan, own_sizes, [*notes, NEVER])


def _of_flat(
    basis: Basis, held: IntArray, inputs: PlanInput, moved: Moved, spare: int, notes: Sequence[str]
) -> WhatIf:
    """Return the answer for the static fleet ``held``, with ``spare`` more instances per pool."""
    sizes = _sizes_moved(basis.sizes, inputs.sizes, inputs.hardware)
    needed = instances_for(basis.sizes, inputs.sizes, held, moved.growth)
    if (needed < 0).any():
        why = "Some of its instances serve nothing within those limits; a replay finds what does."
        return replace(_no_plan(why, sizes, notes), flat=True)
    counts = with_spare(needed, spare)
    if lacking := what_lacks(inputs.hardware, counts):
        return replace(_no_plan(lacking, sizes, notes), flat=True)
    load = load_of(basis, moved)
    target = np.broadcast_to(counts, (len(load.tps), *counts.shape))
    unsure = [IN_PROPORTION] if (needed != held).any() else []
    unsure += [HELD] if moved.quantile is not None else []
    return WhatIf(
        status="flat",
        totals=taken_by(inputs, load, counts),
        gap=None,
        least=int(counts.sum()),
        most=int(counts.sum()),
        periods=_periods(inputs, target, load.tps.max(axis=3)),
        sizes=sizes,
        gpus=_gpus(inputs.hardware, target),
        binding=(),
        conflict="",
        notes=(*notes, *unsure, NEVER),
        flat=True,
    )


def _no_plan(why: str, sizes: tuple[SizeMoved, ...], notes: Sequence[str]) -> WhatIf:
    return WhatIf("infeasible", None, None, 0, 0, (), sizes, (), (), why, tuple(notes))


def _unable(before: Sizes, after: Sizes, hardware: Hardware) -> str:
    """Return a sentence if no replica of a model can meet its limits any more, else ""."""
    stages = hardware.stages
    for m, model in enumerate(hardware.models):
        for stage in np.unique(stages):
            had, has = (sizes.pool_tps[m, stages == stage, 0] for sizes in (before, after))
            if had.any() and not has.any():
                return f"Nothing of this scenario serves {model.name} within those limits."
    return ""


def load_of(basis: Basis, moved: Moved) -> Load:
    """Return the load to plan for, by group of tiers if the run planned groups separately.

    Deferrable load does not depend on the quantile. It stays as planned, times ``growth``.
    """
    periods = len(basis.window.period_starts_s)
    names = list(dict.fromkeys(series.tier for series in basis.series)) or [INTERACTIVE]
    shape = basis.waiting_tps.shape
    tiers, expected = np.zeros((len(names) + 1, *shape)), np.zeros(shape)
    for series in basis.series:
        rate = series.planned if moved.quantile is None else series.rate(moved.quantile)
        tiers[names.index(series.tier), :, series.model, series.region] = rate.reshape(periods, -1)
        expected[:, series.model, series.region] += series.rate(None).reshape(periods, -1)
    tiers[-1] = basis.waiting_tps
    tiers *= moved.growth
    load = Load(tiers.sum(axis=0), expected_tps=expected * moved.growth)
    if len(names) > 1:
        load = replace(load, tiers=(*names, DEFERRABLE), tier_tps=tiers)
    return load.times(basis.load_factor)


def moved_sizes(
    basis: Basis, before: Hardware, after: Hardware
) -> tuple[FloatArray, tuple[str, ...]]:
    """Return factors on the capacity of replicas for the limits of ``after``, and notes.

    Factors ``[l, g]`` are ratios of closed-form capacities. A note names each replica without a
    closed form (factor 1), or without capacity at these limits (factor 0).
    """
    factors, notes = np.ones(basis.alone.shape[1:]), []
    for m, g in np.argwhere(basis.pool_tps[0, :, :, -1] > 0).tolist():
        name = f"{before.models[m].name} on {before.arrangement(m, g)}"
        if np.isnan(basis.closed_rps[m, g]):
            notes.append(f"{name}: closed forms do not size it, so its size is as it was.")
            continue
        now = closed_rps(after, m, g, basis.lengths[m])
        factors[m, g] = 0.0 if np.isnan(now) else now / basis.closed_rps[m, g]
        if np.isnan(now):
            notes.append(f"{name} cannot keep the limits at any rate.")
    return factors, tuple(notes)


def _times(sizes: Sizes, factors: FloatArray) -> Sizes:
    """Return ``sizes`` with the capacities of pools and single replicas times ``factors``."""
    capacity = {
        place: (
            tier,
            replace(
                capacity_of,
                max_rps=capacity_of.max_rps * factors[place],
                input_tps=capacity_of.input_tps * factors[place],
            ),
        )
        for place, (tier, capacity_of) in sizes.capacity.items()
        if factors[place] > 0
    }
    return replace(sizes.times(factors), capacity=capacity)


def _sizes_moved(before: Sizes, after: Sizes, hardware: Hardware) -> tuple[SizeMoved, ...]:
    """Return the capacity of a single replica before and after, for each model and column."""
    return tuple(
        SizeMoved(
            hardware.models[m].name,
            hardware.arrangement(m, g),
            float(after.pool_tps[m, g, 0]),
            float(before.pool_tps[m, g, 0]),
        )
        for m, g in np.argwhere(before.pool_tps[:, :, 0] > 0).tolist()
    )


def _answer(
    inputs: PlanInput, plan: ScalingPlan, sizes: tuple[SizeMoved, ...], notes: Sequence[str]
) -> WhatIf:
    """Return the answer for a plan."""
    figures: PlanFigures = plan_figures(inputs, plan)
    replicas = plan.target.sum(axis=(1, 2, 3))
    return WhatIf(
        status=figures.status,
        totals=figures.totals,
        gap=figures.gap,
        least=int(replicas.min()),
        most=int(replicas.max()),
        periods=_periods(inputs, plan.target, plan.demand_tps),
        sizes=sizes,
        gpus=_gpus(inputs.hardware, plan.target),
        binding=tuple(limit.sentence for limit in figures.binding[:3]),
        conflict=" ".join(figures.conflicts),
        notes=tuple(notes),
    )


def _gpus(hardware: Hardware, target: IntArray) -> tuple[GpusMost, ...]:
    """Return the peak GPUs of each region and GPU type that is available or in use."""
    taken = np.zeros((len(target), *hardware.capacity_gpus.shape), np.int64)
    for m, r, g in hardware.pool_index:
        taken[:, r, hardware.columns[g].gpu] += target[:, m, r, g] * hardware.profiles[m, g].tp
    most, of_all = taken.max(axis=0), taken.sum(axis=2).max(axis=0)
    spot = {column.gpu for column in hardware.columns if column.spot}
    return tuple(
        GpusMost(region.name, gpu.name, t in spot, int(most[r, t]), int(of_all[r]))
        for r, region in enumerate(hardware.regions)
        for t, gpu in enumerate(hardware.gpu_types)
        if hardware.capacity_gpus[r, t] or most[r, t]
    )


def _periods(
    inputs: PlanInput, target: IntArray, demand_tps: FloatArray
) -> tuple[PeriodMoved, ...]:
    """Return replicas, demand and capacity of each period."""
    moved = []
    for p, start_s in enumerate(inputs.window.period_starts_s.tolist()):
        sizes = inputs.sizes.of(p)
        carried = together(sizes.theta_tps, sizes.pool_tps, target[p][None])[0]
        places = np.ndindex(*carried.shape[:2])
        moved.append(
            PeriodMoved(
                begins=moment(start_s).strftime("%Y-%m-%dT%H:%M:%SZ"),
                replicas=int(target[p].sum()),
                demand_tps=float(demand_tps[p].sum()),
                capacity_tps=sum(inputs.hardware.lets_through(carried[place]) for place in places),
            )
        )
    return tuple(moved)
