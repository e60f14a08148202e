"""Answer a what-if: plan again with changed values, without a simulation (methods.md E7).

The inputs are the arrays stored with the run. Closed forms adjust the sizes (capacities of pools of
1, 2, ... replicas) to other limits. The planning program is the same. A variation is a mapping from
addresses of scenario values, such as "tiers[chat].ttft_ms", to new values.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.planning.figures import plan_figures
from planner.domain.planning.inputs import Load, PlanInput
from planner.domain.planning.planning import plan_load, static_fleet_for
from planner.domain.progress import Progress, silent
from planner.domain.serialise import moment
from planner.domain.sizing.closed_form import closed_factors, closed_rates
from planner.domain.sizing.sizing import Sizes
from planner.domain.traffic.groups import DEFERRABLE, INTERACTIVE
from planner.domain.traffic.lengths import cached_part
from planner.domain.whatif.figures import PeakGpus, PeriodPlan, SizeChange, WhatIf
from planner.domain.whatif.gpu_shares import MAX_PLANNING_ROUNDS, capacities_for, share_notes
from planner.domain.whatif.plan_inputs import Basis
from planner.domain.whatif.settings import Variation, with_variation
from planner.domain.whatif.static_fleet import (
    IN_PROPORTION,
    StaticFleet,
    exceeded_limit,
    fleet_totals,
    gpus_used,
    instances_for,
    with_spare,
)
from planner.errors import Infeasible, ScenarioError
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.schema.planning import MEAN
from planner.inputs.scenario.settings import settings_of
from planner.inputs.scenario.user_facts import UserFacts
from planner.optimizer.pools import pool_capacity
from planner.optimizer.problem import ScalingPlan
from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Tier
from simulation.sizing.trial import SharedPrompts

SOLVE_S = 2.0  # time limit per solve: a user waits for the answer
ESTIMATED_SIZES = (
    "Capacities at other limits are estimated from the simulated ones by closed forms. The median "
    "error is 2%, and 95% are below 11% for one replica and 38% for 32. Errors of E2E limits are "
    "not measured. Simulate to confirm."
)
STATIC_FLEET = "A static fleet follows no forecast, so the forecast percentile changes nothing."
STATIC_INTERVAL = "A static fleet makes no scaling decisions, so the interval changes nothing."
SAME_FORECASTS = "Shorter intervals use the forecasts of the run. Newer ones may differ."
DEFERRABLE_AS_PLANNED = "Deferrable load is planned as before."
SAME_PERCENTILE = "The forecast percentile is that of the run."
NOT_SIMULATED = "Run a simulation to see SLO attainment, latency and actual energy."
# Values that a stored plan can answer for. Others change its forecast or its sizes.
ANSWERABLE = re.compile(
    r"traffic\.sources\[[^\]]+\]\.(scale|cached_share)"
    r"|forecast\.quantiles?"
    r"|tiers\[[^\]]+\]\.(ttft_ms|tbt_ms|e2e_ms|percentile)"
    r"|regions\[[^\]]+\]\.(capacity|usd_per_gpu_hour|spot|carbon_g_per_kwh|pue|power)(\W.*)?"
    r"|horizon\.period_s"
    r"|objective\.(?!periods|baseline|priorities|criticality).+"
)


# Factors on capacities [model, GPU column, number of replicas], and notes on them.
Factors = tuple[FloatArray, tuple[str, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class StoredPlan:
    """The plan of a run, as stored to answer what-ifs about it without another run.

    ``solve_s`` is the time limit of the solver in seconds.
    """

    scenario: Scenario
    known: UserFacts
    basis: Basis
    solve_s: float = SOLVE_S
    # Cache by tiers and cached share, which many cells of a grid have in common.
    factors: dict[tuple[tuple[Tier, ...], float | None], Factors] = field(default_factory=dict)

    @property
    def scenario_with_spare(self) -> Scenario:
        """Return the scenario with the spare replicas of the plan."""
        return self.basis.with_spare(self.scenario)


@dataclass(frozen=True, slots=True)
class DemandChange:
    """How a variation changes the planned demand."""

    growth: float = 1.0  # factor on demand
    level: float | str | None = None  # forecast percentile or "mean"; None: unchanged
    cached_share: float | None = None  # cached share of prompt tokens; None: unchanged


def answer(
    base: StoredPlan, variation: Variation, shares: Mapping[str, float] | None = None
) -> tuple[WhatIf, Variation]:
    """Return (answer, variation): the plan of ``base`` with a variation and with limits on GPUs.

    ``shares`` limit GPU types to a share of a region's peak GPUs. The returned variation has these
    limits as capacities. Raises ScenarioError if only a run can answer.
    """
    result = answer_what_if(base, variation)
    if not shares:
        return result, dict(variation)
    limits: dict[str, object] = {}
    for _ in range(MAX_PLANNING_ROUNDS):
        # Limits change the plan, and so the peak that shares refer to: repeat until they agree.
        new_limits = capacities_for(base.scenario, shares, result.gpus)
        if result.totals is None or new_limits == limits:
            break
        result, limits = answer_what_if(base, {**variation, **new_limits}), new_limits
    notes = (*share_notes(shares, result, limits), *result.notes)
    return replace(result, notes=notes), {**variation, **limits}


def answer_what_if(base: StoredPlan, variation: Variation, progress: Progress = silent) -> WhatIf:
    """Return the plan of ``base`` with a variation; raise ScenarioError if only a run can answer.

    That is so if the variation changes the possible kinds of replica, because new kinds have not
    been sized.
    """
    basis, old_scenario = base.basis, base.scenario_with_spare
    scenario = with_variation(old_scenario, variation)
    change = demand_change(old_scenario, scenario, variation)
    notes: list[str] = []
    if "horizon.period_s" in variation and scenario.horizon.period_s is not None:
        basis = basis.with_interval(scenario.horizon.period_s)
        notes.append(SAME_FORECASTS if basis.flat is None else STATIC_INTERVAL)
    inputs = _varied_inputs(base, basis, scenario, change, notes)
    sizes = _size_changes(basis.sizes, inputs.sizes, inputs.hardware)
    why_unservable = _unservable_models(basis.sizes, inputs.sizes, inputs.hardware)
    if why_unservable:
        return _no_plan(why_unservable, sizes, notes)
    if change.level is not None and basis.waiting_tps.any():
        notes.append(DEFERRABLE_AS_PLANNED)
    if basis.peaks_before is not None:  # today's fleet is not stated
        inputs = _with_fleet_before(base, inputs, basis.peaks_before * change.growth)
    if basis.flat is not None:  # the run recommends a static fleet
        old, new = old_scenario.objective.spare, scenario.objective.spare
        fleet = StaticFleet.of(basis.flat, old, new)
        return _static_answer(basis, fleet, inputs, change, notes)
    try:
        plan = plan_load(inputs, load_of(basis, change), progress)
    except Infeasible as problem:
        return _no_plan(str(problem), sizes, notes)
    return _answer_of_plan(inputs, plan, sizes, notes)


def _varied_inputs(
    base: StoredPlan, basis: Basis, scenario: Scenario, change: DemandChange, notes: list[str]
) -> PlanInput:
    """Return the inputs of a plan with the varied ``scenario``; append notes on what is estimated.

    Raises ScenarioError if the variation changes the possible kinds of replica.
    """
    before = build_hardware(base.scenario_with_spare, base.known, spot=True)
    before = replace(before, tiers_in_use=basis.asked)
    hardware = build_hardware(scenario, base.known, spot=True)
    hardware = replace(hardware, tiers_in_use=basis.asked)
    # The stored sizes are those of the models and GPU columns of the run.
    if hardware.columns != before.columns or hardware.models != before.models:
        raise ScenarioError(
            "The change adds or removes kinds of replicas, without a size. Simulate it."
        )
    sizes, size_notes = _changed_sizes(base, basis, before, hardware, change.cached_share)
    settings = settings_of(scenario).plan
    time_limit_s = min(settings.objective.time_limit_s, base.solve_s)
    settings = settings.with_objective(time_limit_s=time_limit_s)
    chooses_percentile = change.level is None and scenario.forecast.quantile is None
    if chooses_percentile and hardware.tiers != before.tiers:
        notes.append(SAME_PERCENTILE)
    notes += size_notes
    return PlanInput(settings, hardware, basis.traffic, basis.window, sizes, basis.current)


def _changed_sizes(
    base: StoredPlan,
    basis: Basis,
    before: Hardware,
    after: Hardware,
    cached_share: float | None,
) -> tuple[Sizes, Sequence[str]]:
    """Return (sizes, notes) for the SLO limits of ``after`` and another share of cached tokens.

    They are estimated by closed forms. ``cached_share`` None leaves the share as it was. Raises
    ScenarioError if another share needs a simulation.
    """
    if cached_share is not None and basis.blocks:
        raise ScenarioError(
            "traffic.sources: the run found cached prompts by block hashes. Simulate another share."
        )
    if after.tiers == before.tiers and cached_share is None:
        return basis.sizes, ()
    key = after.tiers, cached_share
    if key not in base.factors:
        base.factors[key] = pool_factors(basis, before, after, cached_share)
    factors, notes = base.factors[key]
    return _scaled_sizes(basis.sizes, factors), (ESTIMATED_SIZES, *notes)


def _with_fleet_before(base: StoredPlan, inputs: PlanInput, peaks_tps: FloatArray) -> PlanInput:
    """Return ``inputs`` with a static fleet for the peaks before the window as the current fleet.

    ``peaks_tps`` are those peaks in input tokens/s.
    """
    fleet_inputs = inputs
    if base.scenario_with_spare != base.scenario:
        # The spare replicas that a level of assurance adds are in the plan, not in this fleet.
        spare = settings_of(base.scenario).plan.spare
        fleet_inputs = replace(inputs, settings=replace(inputs.settings, spare=spare))
    current, _ = static_fleet_for(fleet_inputs, peaks_tps)
    return replace(inputs, current=current)


def _static_answer(
    basis: Basis, fleet: StaticFleet, inputs: PlanInput, change: DemandChange, notes: list[str]
) -> WhatIf:
    """Return the answer of a run that recommends the static ``fleet``: its replicas, resized.

    ``basis`` has the stored inputs, and ``inputs`` those with the variation.
    """
    sizes = _size_changes(basis.sizes, inputs.sizes, inputs.hardware)
    load = load_of(basis, change)
    # The peak by model and region. The load factor belongs to the plan, which a static fleet does
    # not follow.
    peak_tps = load_of(replace(basis, load_factor=1.0), DemandChange()).tps.max(axis=(0, 3))
    needed = instances_for(fleet, basis.sizes, inputs.sizes, peak_tps, change.growth)
    counts = with_spare(needed, fleet.more_spare)
    if (needed < 0).any():  # no number of replicas meets the limits
        why = "Some of its replicas cannot meet these limits at any load. Simulate to find others."
    else:
        why = exceeded_limit(inputs.hardware, counts)
    if why:
        return replace(_no_plan(why, sizes, notes), flat=True)
    if change.growth != 1 or (needed != fleet.counts).any():
        notes.append(IN_PROPORTION)
    if change.level is not None:
        notes.append(STATIC_FLEET)
    target = np.broadcast_to(counts, (len(load.tps), *counts.shape))  # the same in each period
    without_totals = _answer_of_target(inputs, target, load.tps.max(axis=3), sizes, notes)
    fleet_cost = fleet_totals(inputs, load, counts)
    return replace(without_totals, status="flat", totals=fleet_cost, flat=True)


def demand_change(before: Scenario, after: Scenario, variation: Variation) -> DemandChange:
    """Return how a variation changes demand; raise ScenarioError if only a run can answer.

    ``before`` and ``after`` are the scenario without and with the variation.
    """
    deferrable = {f"tiers[{tier.name}]" for tier in before.tiers if tier.deferrable}
    for address in variation:
        if not ANSWERABLE.fullmatch(address) or address.rpartition(".")[0] in deferrable:
            raise ScenarioError(f"{address}: the stored plan cannot answer for it. Simulate it.")
    sources = zip(after.traffic.sources, before.traffic.sources, strict=True)
    factors = [new.scale / old.scale for new, old in sources]
    growth = factors[0]
    if not np.allclose(factors, growth, rtol=1e-9, atol=0.0):
        raise ScenarioError(
            "traffic.sources: the stored plan scales all sources alike. Simulate this change."
        )
    cached_share = _cached_share(before, after)
    if "forecast.quantile" not in variation and not variation.get("forecast.quantiles"):
        return DemandChange(growth, cached_share=cached_share)
    level = after.forecast.quantile
    if level is None or after.forecast.quantiles:
        raise ScenarioError("forecast: choosing percentiles needs a run. Give one quantile.")
    return DemandChange(growth, level, cached_share)


def _cached_share(before: Scenario, after: Scenario) -> float | None:
    """Return the new cached share of prompt tokens; None if it does not change.

    Raises ScenarioError if the new shares differ between sources.
    """
    shares = [source.cached_share for source in after.traffic.sources]
    if shares == [source.cached_share for source in before.traffic.sources]:
        return None
    share = shares[0]
    if share is None or len(set(shares)) > 1:
        raise ScenarioError(
            "traffic.sources: the stored plan has one cached_share for all sources. Give all the "
            "same, or simulate this change."
        )
    return share


def _no_plan(why: str, sizes: tuple[SizeChange, ...], notes: Sequence[str]) -> WhatIf:
    """Return the answer that there is no plan, with the reason."""
    return WhatIf("infeasible", sizes=sizes, conflict=why, notes=tuple(notes))


def _unservable_models(before: Sizes, after: Sizes, hardware: Hardware) -> str:
    """Return a sentence on the first model that no replica can serve any more; "" without one.

    ``before`` and ``after`` are the sizes without and with the change.
    """
    stages = hardware.stages  # prefill, decode or both, by GPU column
    for m, model in enumerate(hardware.models):
        for stage in np.unique(stages):
            could_serve = before.pool_tps[m, stages == stage, 0].any()
            can_serve = after.pool_tps[m, stages == stage, 0].any()
            if could_serve and not can_serve:
                return f"{model.name}: no replica of this scenario meets these limits. Relax them."
    return ""


def load_of(basis: Basis, change: DemandChange) -> Load:
    """Return the demand to plan for, by group of tiers if the run planned groups separately.

    Deferrable load does not depend on the percentile: it is as planned, times the growth.
    """
    shape = basis.waiting_tps.shape
    periods = shape[0]
    names = list(dict.fromkeys(series.tier for series in basis.series)) or [INTERACTIVE]
    # [group of tiers, period, model, region, bin]: interactive groups first, then deferrable load.
    tier_tps, expected_tps = np.zeros((len(names) + 1, *shape)), np.zeros(shape)
    level = None if change.level is None or change.level == MEAN else float(change.level)
    for series in basis.series:
        tier, m, r = names.index(series.tier), series.model, series.region
        rate = series.planned_rate if change.level is None else series.rate(level)
        tier_tps[tier, :, m, r] = rate.reshape(periods, -1)
        expected_tps[:, m, r] += series.rate(None).reshape(periods, -1)
    tier_tps[-1] = basis.waiting_tps
    tiers = (*names, DEFERRABLE)
    load = Load.of_tiers(tiers, tier_tps * change.growth, expected_tps * change.growth)
    return load.scaled(basis.load_factor)


def pool_factors(
    basis: Basis, before: Hardware, after: Hardware, cached_share: float | None = None
) -> Factors:
    """Return (factors, notes): how the capacity of pools changes with the limits of ``after``.

    Factors are ``[model, GPU column, n]`` for pools of n replicas, by closed forms.
    ``cached_share`` replaces the cached share of prompt tokens; None: unchanged. A note names each
    replica without a closed form (factor 1), or without capacity at these limits (factor 0).
    """
    pools = np.argwhere(basis.pool_tps[0, :, :, -1] > 0).tolist()  # (model, GPU column)
    prompts = [basis.prompts(m) for m in range(len(basis.lengths))]
    if cached_share is not None:
        prompts = [
            SharedPrompts(isl, osl, cached_part(isl, cached_share)) for isl, osl in basis.lengths
        ]
    sized = [(m, g) for m, g in pools if not np.isnan(basis.closed_rps[0, m, g])]
    capacity_rps = closed_rates(after, sized, basis.lengths, prompts)
    notes = []
    for m, g in pools:
        name = f"{before.models[m].name} on {before.arrangement(m, g)}"
        if (m, g) not in sized:
            notes.append(f"{name}: closed forms cannot size it. Its capacity is unchanged here.")
        elif np.isnan(capacity_rps[0, m, g]):
            notes.append(f"{name} cannot meet the limits at any load.")
    return closed_factors(basis.closed_rps, capacity_rps), tuple(notes)


def _scaled_sizes(sizes: Sizes, factors: FloatArray) -> Sizes:
    """Return ``sizes`` with all capacities times ``factors [model, GPU column, n replicas]``."""
    changed = sizes.scaled(factors)
    capacity = {}  # of a single replica
    for (m, g), (tier, old) in sizes.capacity.items():
        factor = float(changed.pool_tps[m, g, 0] / sizes.pool_tps[m, g, 0])
        if factor > 0:
            new = replace(old, max_rps=old.max_rps * factor, input_tps=old.input_tps * factor)
            capacity[m, g] = tier, new
    return replace(changed, capacity=capacity)


def _size_changes(before: Sizes, after: Sizes, hardware: Hardware) -> tuple[SizeChange, ...]:
    """Return the capacity of a single replica before and after, for each model and GPU column."""
    return tuple(
        SizeChange(
            hardware.models[m].name,
            hardware.arrangement(m, g),
            float(after.pool_tps[m, g, 0]),
            float(before.pool_tps[m, g, 0]),
        )
        for m, g in np.argwhere(before.pool_tps[:, :, 0] > 0).tolist()
    )


def _answer_of_plan(
    inputs: PlanInput, plan: ScalingPlan, sizes: tuple[SizeChange, ...], notes: Sequence[str]
) -> WhatIf:
    """Return a plan as an answer, with its totals."""
    figures = plan_figures(inputs, plan)
    return replace(
        _answer_of_target(inputs, plan.target, plan.demand_tps, sizes, notes),
        status=figures.status,
        totals=figures.totals,
        gap=figures.gap,
        binding=tuple(limit.sentence for limit in figures.binding[:3]),
        conflict=" ".join(figures.conflicts),
        bound=figures.bound,
        solve_seconds=figures.solve_seconds,
    )


def _answer_of_target(
    inputs: PlanInput,
    target: IntArray,
    demand_tps: FloatArray,
    sizes: tuple[SizeChange, ...],
    notes: Sequence[str],
) -> WhatIf:
    """Return an answer with the replicas of each period, without totals.

    ``target [period, model, region, GPU column]`` are the replicas, ``demand_tps`` ``[period,
    model, region]`` is the peak demand in input tokens/s.
    """
    replicas = target.sum(axis=(1, 2, 3))
    return WhatIf(
        status="",
        least=int(replicas.min()),
        most=int(replicas.max()),
        periods=_period_rows(inputs, target, demand_tps),
        sizes=sizes,
        gpus=_peak_gpus(inputs.hardware, target),
        notes=(*notes, NOT_SIMULATED),
    )


def _peak_gpus(hardware: Hardware, target: IntArray) -> tuple[PeakGpus, ...]:
    """Return the peak GPUs of each region and GPU type that is available or in use.

    ``target`` are replicas, ``[period, model, region, GPU column]``.
    """
    used = gpus_used(hardware, target)
    peaks = used.max(axis=0)  # [region, GPU type]
    peaks_of_region = used.sum(axis=2).max(axis=0)
    spot_types = {column.gpu for column in hardware.columns if column.spot}
    rows = []
    for r, t in np.argwhere((hardware.capacity_gpus > 0) | (peaks > 0)).tolist():
        row = PeakGpus(
            region=hardware.regions[r].name,
            gpu=hardware.gpu_types[t].name,
            spot=t in spot_types,
            most=int(peaks[r, t]),
            of_all=int(peaks_of_region[r]),
        )
        rows.append(row)
    return tuple(rows)


def _period_rows(
    inputs: PlanInput, target: IntArray, demand_tps: FloatArray
) -> tuple[PeriodPlan, ...]:
    """Return the replicas, peak demand and capacity of each period, over all models and regions.

    ``target [period, model, region, GPU column]`` are the replicas, ``demand_tps`` ``[period,
    model, region]`` is the peak demand in input tokens/s.
    """
    periods = []
    for p, start_s in enumerate(inputs.window.period_starts_s.tolist()):
        sizes = inputs.sizes.at_period(p)
        # ``pool_capacity`` takes and returns an axis of periods, which is one here.
        (pool_tps,) = pool_capacity(sizes.theta_tps, sizes.pool_tps, target[p][None])
        by_model_and_region = pool_tps.reshape(-1, pool_tps.shape[-1])  # capacity by GPU column
        periods.append(
            PeriodPlan(
                begins=moment(start_s).strftime("%Y-%m-%dT%H:%M:%SZ"),
                replicas=int(target[p].sum()),
                demand_tps=float(demand_tps[p].sum()),
                capacity_tps=sum(map(inputs.hardware.capacity_of_region, by_model_and_region)),
            )
        )
    return tuple(periods)
