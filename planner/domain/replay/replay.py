"""Replay every policy of a scenario on the same requests and the same hardware."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from planner.domain.placement.placing_policy import PlacingPolicy
from planner.domain.planning.inputs import PlanInput, quantiles_of
from planner.domain.planning.planning import counts_over_time, static_at_peak, static_before
from planner.domain.progress import Progress, part, silent
from planner.domain.replay.detail import detail_of
from planner.domain.replay.initial_fleet import fleet_from_today
from planner.domain.replay.module_report import module_run
from planner.domain.replay.oracle_plan import Oracle
from planner.domain.replay.policy_context import (
    NOTHING_SHARED,
    Loads,
    SharedInputs,
    policy_context_of,
)
from planner.domain.replay.replica_loss import (
    Loss,
    losses_of,
    survival_of,
    without_replicas,
    worst_loss,
)
from planner.domain.replay.reserved_cost import with_reserved
from planner.domain.replay.serving_capacity import capacity_table, serving
from planner.domain.sizing.sizing import Sizes
from planner.domain.study import NO_DETAIL, PolicyRun, Setting, Study, Survival
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import HOUR_S, Window
from planner.errors import Infeasible, ScenarioError
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.faults import faults_of
from planner.inputs.scenario.settings import Settings
from planner.optimizer.problem import ScalingPlan
from planner.policies.base import Policy
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.policies.registry import traits_of
from simulation.cells import simulate_cell
from simulation.early_stop import LateCounter, TargetMissed
from simulation.fleet import Fleet, Tier
from simulation.metrics import Summary
from simulation.policies.wrappers.cost_limit import CostLimit, CostLimitExceeded
from simulation.policies.wrappers.scale_in import ScaleInOptions, ScaleInUndo
from simulation.policies.wrappers.signal_range import SignalRecorder
from simulation.policy import ReportsParameters, ScalingPolicy
from simulation.results import PoolSeries
from simulation.trace import Trace
from simulation.trace_replay import Replayed, summarise_replay

MAX_INTERVALS = 1440  # intervals kept per policy: one day of minutes


def prepare(
    settings: Settings,
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    sizes: Sizes,
    requests: Trace,
) -> Study:
    """Return the study of a window: what its policies need, and two reference static fleets.

    One fleet covers the peak demand of the window, the other the peak of the time before it.
    """
    no_replicas = np.zeros(hardware.minimum.shape, np.int64)
    inputs = PlanInput(settings.plan, hardware, traffic, window, sizes, no_replicas)
    peak, misfit = static_at_peak(inputs)
    before = static_before(inputs)
    return Study(
        settings, hardware, traffic, window, sizes, requests, peak, misfit, before,
        quantiles=quantiles_of(inputs),
    )  # fmt: skip


@dataclass(eq=False)
class ConstantFleets:
    """Replays of fleets that never change, each made once for all policies of one window."""

    _runs: dict[Hashable, PolicyRun] = field(default_factory=dict, init=False)
    _locks: dict[Hashable, Lock] = field(default_factory=dict, init=False)

    def run(self, key: Hashable, replay: Callable[[], PolicyRun]) -> PolicyRun:
        """Return the run of the fleet that ``key`` stands for; ``replay`` it if there is none yet.

        Other threads that need the same fleet wait for the replay.
        """
        with self._locks.setdefault(key, Lock()):
            if key not in self._runs:
                self._runs[key] = replay()
            return self._runs[key]


@dataclass(frozen=True, slots=True, eq=False)
class ReplayOptions:
    """What a replay computes, and when it may end early.

    Without ``detailed``, the tables are empty and the summary is brief. ``requests`` keeps a row
    per request. ``spare`` replays a second time without the replicas of the worst loss, for
    ``survival``. ``lost`` are replicas that the replay lacks. ``changed`` modifies the fleet after
    the policy was built. ``bars`` are attainments by tier: TargetMissed is raised as soon as a tier
    is sure to stay below both its target and its bar. CostLimitExceeded is raised once the policy
    has cost more than ``cost_limit`` dollars. ``constant`` are the replays of constant fleets to
    share; None: nothing is shared.
    """

    detailed: bool = True
    requests: bool = False
    spare: bool = False
    lost: Loss | None = None
    changed: Callable[[Fleet], Fleet] | None = None
    bars: Mapping[str, float] | None = None
    cost_limit: float = float("inf")
    constant: ConstantFleets | None = None


IN_DETAIL = ReplayOptions()
BRIEF = ReplayOptions(detailed=False)


def run_policy(
    study: Study,
    policy: Policy,
    *,
    seed: int,
    progress: Progress,
    shared: SharedInputs = NOTHING_SHARED,
    options: ReplayOptions = IN_DETAIL,
) -> PolicyRun:
    """Build a policy for the study and replay it.

    Raise CostLimitExceeded if it costs more than ``options.cost_limit``, and TargetMissed if a tier
    is sure to stay below its target and its bar in ``options.bars``.
    """
    built = build_policy(study, policy, seed=seed, progress=progress, shared=shared)
    limit = options.cost_limit
    if np.isfinite(limit) and limit < min_cost_usd(study, built, options):
        raise CostLimitExceeded
    replaying = part(progress, built.work_done, 1.0)
    return replay_policy(study, policy, built, seed=seed, progress=replaying, options=options)


def build_policy(
    study: Study,
    policy: Policy,
    *,
    seed: int,
    progress: Progress = silent,
    shared: SharedInputs = NOTHING_SHARED,
) -> BuiltPolicy:
    """Return a policy built for the study; the schedule of an oracle baseline is found by replays.

    ``shared`` are costly inputs that policies of the study share.
    """
    check_policy(study, policy.name)
    context = policy_context_of(study, seed=seed, progress=progress, shared=shared)
    if policy.traits.reads_future and "load_factor" not in policy.model_fields_set:
        loads = shared.loads or Loads(study)
        # The search of an oracle's load factor takes most of the time.
        return _oracle(study, policy, context, loads, seed, part(progress, 0, 0.9))
    return policy.build(context)


def min_cost_usd(study: Study, built: BuiltPolicy, options: ReplayOptions) -> float:
    """Return a lower bound on a policy's cost in the window, in dollars, without a replay.

    It is the cost of the replicas that the policy always keeps. It is 0 if none are known, or if
    ``options`` or faults may remove replicas.
    """
    settings, window = study.settings, study.window
    lends = settings.scale_in.lend or settings.plan.objective.lend_share is not None
    may_lose_replicas = options.changed or options.lost or study.hardware.faults or lends
    # Reserved GPUs cost less than ``lowest_usd``.
    if settings.plan.objective.reserve or not built.keeps_floor or may_lose_replicas:
        return 0.0
    pools = built.fleet.pools
    replica_usd = np.array([pool.lowest_usd * pool.gpus_per_instance for pool in pools])
    if built.plan is None:
        replicas = np.array([pool.initial for pool in pools])
        return float(replicas @ replica_usd) * window.duration_s / HOUR_S
    try:
        counts = built.plan().target
    except Infeasible:  # a replay may end before the period without a plan
        return 0.0
    times, requested = counts_over_time(counts, window)
    usd_per_hour = study.counts_by_pool(requested) @ replica_usd
    ends = np.append(times, window.duration_s).clip(max=window.duration_s)
    return float(np.diff(ends) @ usd_per_hour) / HOUR_S


def replay_policy(
    study: Study,
    policy: Policy,
    built: BuiltPolicy,
    *,
    seed: int,
    progress: Progress,
    options: ReplayOptions = IN_DETAIL,
) -> PolicyRun:
    """Replay the policy ``built``, which was made from ``policy``.

    ``study`` is the one it was built for, or a changed copy. The policy does not know the change.
    Policies that are the same constant fleet share a replay, kept in ``options.constant``. With
    ``options.spare``, the run also has its survival of the worst loss of replicas.
    """
    replay = partial(
        _replayed_alone, study, policy, built, seed=seed, progress=progress, options=options
    )
    key = _constant_fleet_key(study, policy, built, options)
    shared_fleets = None if key is None else options.constant
    run = replay() if shared_fleets is None else shared_fleets.run(key, replay)
    if run.name != policy.key:  # a shared run: another policy has the same constant fleet
        labels = _pool_labels(study, built)
        run = replace(
            run,
            name=policy.key,
            label=policy.title,
            summary=replace(run.summary, policy=built.policy.name),
            plan=built.plan() if built.plan else None,
            settings=policy_settings(policy, built.policy, built.fleet, run.series, labels),
        )
    # Oracle baselines cannot be deployed, so nobody asks whether they survive a loss.
    if not options.spare or policy.traits.uses_future_data:
        return run
    return _with_survival(study, policy, built, run, seed, options)


def _constant_fleet_key(
    study: Study, policy: Policy, built: BuiltPolicy, options: ReplayOptions
) -> Hashable | None:
    """Return a key of the replay of a constant fleet: replays with equal keys are equal.

    None if the policy may change its fleet, or ``options`` may end the replay or change the fleet.
    """
    may_end = options.bars is not None or np.isfinite(options.cost_limit)
    if may_end or options.changed is not None or not _never_scales(study, policy, built):
        return None
    lost = None if options.lost is None else (options.lost.counts.tobytes(), options.lost.region)
    pools = tuple((pool.initial, pool.minimum, pool.maximum) for pool in built.fleet.pools)
    return pools, lost, options.detailed, options.requests


def _never_scales(study: Study, policy: Policy, built: BuiltPolicy) -> bool:
    """Return whether a policy is sure to be replayed as a static fleet of its first replicas.

    That is so for static fleets, and for plans with constant counts in one region. Plans of several
    regions may route requests otherwise, and plans that reserve GPUs or lend have other costs.
    """
    objective = study.settings.plan.objective
    if not built.keeps_floor or policy.traits.may_exceed_plan:
        return False
    if built.plan is None:
        return True
    if objective.reserve or objective.lend_share is not None or len(study.hardware.regions) > 1:
        return False
    try:
        planned = study.counts_by_pool(built.plan().target)
    except Infeasible:
        return False
    return bool((planned == [pool.initial for pool in built.fleet.pools]).all())


def _pool_labels(study: Study, built: BuiltPolicy) -> list[str]:
    """Return the GPU arrangement of each pool of a built policy, such as "4 x H100, prefill"."""
    arrangements = [study.hardware.arrangement(m, g) for m, _, g in study.hardware.model_region_gpu]
    return [arrangements[p] for p in built.source_pools]


def _replayed_alone(
    study: Study,
    policy: Policy,
    built: BuiltPolicy,
    *,
    seed: int,
    progress: Progress,
    options: ReplayOptions,
) -> PolicyRun:
    """Replay a policy that was built already, without its survival of a loss."""
    result, fleet, recorder = _simulate(study, policy, built, seed, progress, options)
    series = result.series
    labels = _pool_labels(study, built)
    # By pool of the fleet: the index of the study's pool; None for a pool that serves no requests.
    source_pools = [
        None if pool.lends else source
        for source, pool in zip(built.source_pools, fleet.pools, strict=True)
    ]
    detail = NO_DETAIL
    if options.detailed:
        capacity = capacity_table(study, series, source_pools)
        detail = replace(detail_of(result, labels, requests=options.requests), capacity=capacity)
    plan = built.plan() if built.plan else None
    return PolicyRun(
        name=policy.key,
        label=policy.title,
        summary=_summary(study, plan, result, brief=not options.detailed),
        fleet=result.fleet,
        series=series,
        plan=plan,
        detail=detail,
        signal_range=recorder.signal_range,
        settings=policy_settings(policy, recorder, fleet, series, labels),
        worst_loss=worst_loss(study, serving(study, series, source_pools), series.interval_s),
        modules=module_run(study, built, result, labels, policy),
        refused_starts=getattr(built.policy, "refused", 0),
    )


def _summary(study: Study, plan: ScalingPlan | None, result: Replayed, *, brief: bool) -> Summary:
    """Return the summary of a replay, with the cost of the GPUs that ``plan`` reserved, if any."""
    summary = summarise_replay(result, brief=brief)
    return summary if plan is None else with_reserved(study, summary, result, plan)


def _with_survival(
    study: Study,
    policy: Policy,
    built: BuiltPolicy,
    run: PolicyRun,
    seed: int,
    options: ReplayOptions,
) -> PolicyRun:
    """Return the run with its survival of the worst loss of replicas (N+1).

    Survival is found by a replay without the lost replicas. That replay is left out if an
    interactive tier misses its target even with all replicas; the attainment after a loss is then
    unknown. If the plan must have spare replicas, the run also says by how much they fall short.
    """
    assert run.worst_loss is not None
    with_all = survival_of(study, run.summary.slo_attainment)
    survival: Survival | None
    if with_all is not None and with_all.shortfall:
        survival = replace(with_all, attainment={}, share=None)
    else:
        loss = losses_of(study)[run.worst_loss]
        after_loss = replace(BRIEF, lost=loss, constant=options.constant)
        after = replay_policy(study, policy, built, seed=seed, progress=silent, options=after_loss)
        survival = survival_of(study, after.summary.slo_attainment)
    if survival is None or not study.settings.plan.spare:
        return replace(run, survival=survival)
    return replace(run, survival=survival, lacks_spare=survival.shortfall)


def _simulate(
    study: Study,
    policy: Policy,
    built: BuiltPolicy,
    seed: int,
    progress: Progress,
    options: ReplayOptions,
) -> tuple[Replayed, Fleet, SignalRecorder]:
    """Return (replay, fleet, recorder): of a built policy, with the fleet at the start.

    ``recorder`` is the policy as it was replayed. With ``options.detailed``, it also has the range
    of the signal that the policy reads. A replay that the search of an oracle has made is reused.
    """
    fleet = replace(built.fleet, faults=faults_of(study.hardware.faults, built.fleet.pools))
    if options.lost is not None:
        fleet = without_replicas(study, fleet, built.source_pools, options.lost)
    rule = _wrapped_rule(study, built, options)
    recorder = SignalRecorder(rule)
    lend = study.settings.scale_in.lend
    fleet = fleet_from_today(study, fleet, built.source_pools, recorder, lend=lend)
    if options.changed is not None:
        fleet = options.changed(fleet)
    needs_replay = options.lost is not None or options.changed is not None or options.requests
    if built.replay is not None and not needs_replay:
        return built.replay, fleet, recorder
    duration_s = study.window.duration_s
    watch = None  # ends the replay once a tier is sure to miss its bar
    if options.bars is not None:
        watch = LateCounter(_tiers_to_watch(fleet, options.bars), duration_s)
    result = simulate_cell(
        study.trace,
        fleet,
        recorder if options.detailed else rule,  # the range of a signal is only shown in detail
        cells=study.cells,
        seed=seed,
        duration_s=duration_s,
        interval_s=max(60.0, float(np.ceil(duration_s / MAX_INTERVALS / 60) * 60)),
        progress=lambda done: progress(done, f"Replaying: {policy.title}"),
        watch=watch,
        keep=options.requests,
        brief=not options.detailed and not options.requests,
        carried=study.carried,
    )
    return result, fleet, recorder


def _wrapped_rule(study: Study, built: BuiltPolicy, options: ReplayOptions) -> ScalingPolicy:
    """Return the policy with the scenario's scale-in, placement in a network and limit of cost."""
    scale_in = study.settings.scale_in
    rule: ScalingPolicy = ScaleInUndo(
        ScaleInOptions(built.policy, soft_s=scale_in.soft_s, lend=scale_in.lend),
        reads=scale_in.soft_s > 0,
    )
    # Placement only works with the study's own pools, not with pools that the policy split.
    has_study_pools = list(built.source_pools) == list(range(len(study.hardware.model_region_gpu)))
    if study.network is not None and has_study_pools:
        rule = PlacingPolicy(rule, study.network, study.hardware)
    if np.isfinite(options.cost_limit) and not study.settings.plan.objective.reserve:
        rule = CostLimit(rule, options.cost_limit)
    return rule


def _oracle(
    study: Study,
    policy: Policy,
    context: PolicyContext,
    loads: Loads,
    seed: int,
    progress: Progress,
) -> BuiltPolicy:
    """Return a policy with the cheapest schedule that meets every tier, found by replays.

    If none does, return the policy that follows the plan for the demand as it is. ``loads`` are the
    demands that plans are made for.
    """
    assert policy.traits.plan is not None
    targets = {tier.name: tier.attainment for tier in study.hardware.tiers}
    load = loads.planned_for(policy.traits.plan, part(progress, 0.0, 0.1))

    options = ReplayOptions(bars=targets)
    # The replay of the cheapest schedule that meets every tier, kept by ``judge``.
    cheapest_usd, cheapest_replay = np.inf, None

    def judge(built: BuiltPolicy) -> float | None:
        """Return the cost of a replay in dollars, or None if a tier misses its target."""
        nonlocal cheapest_usd, cheapest_replay
        try:
            result, _, _ = _simulate(study, policy, built, seed, silent, options)
        except TargetMissed:
            return None
        summary = _summary(study, built.plan() if built.plan else None, result, brief=True)
        if not all(summary.slo_met.values()):
            return None
        if summary.cost_usd < cheapest_usd:
            cheapest_usd, cheapest_replay = summary.cost_usd, result
        return summary.cost_usd

    search = Oracle(study, load, context, policy.key, judge, part(progress, 0.1, 1.0))
    cheapest = search.smallest()
    if cheapest is None:
        return policy.build(context)
    return replace(cheapest, replay=cheapest_replay)


def _tiers_to_watch(fleet: Fleet, bars: Mapping[str, float]) -> list[Tier]:
    """Return the fleet's tiers, each with its bar as attainment target if that is lower."""
    return [replace(tier, attainment=min(bars[tier.name], tier.attainment)) for tier in fleet.tiers]


def check_policy(study: Study, name: str) -> None:
    """Raise ScenarioError if the study lacks an input that the policy needs."""
    traits = traits_of(name)
    if traits.needs_current_fleet and study.hardware.today is None:
        raise ScenarioError(f"policies: {name!r} needs the replicas of today in fleet.today.")
    if traits.reads_future and study.window.after_traffic:
        raise ScenarioError(
            f"policies: {name!r} needs observed demand, and the window is after the "
            "traffic. Leave it out, or choose a horizon.start within the traffic."
        )


def policy_settings(
    policy: Policy, rule: ScalingPolicy, fleet: Fleet, series: PoolSeries, labels: Sequence[str]
) -> tuple[Setting, ...]:
    """Return the settings of a policy: parameters, replicas of each pool, and request routing.

    Targets and P/D ratios are those at the end of the run. ``labels`` names the arrangement of each
    pool.
    """
    pools = [
        f"{pool.model} in {pool.region}, {label}"
        for pool, label in zip(fleet.pools, labels, strict=True)
    ]
    routing = {field.name: getattr(fleet.routing, field.name) for field in fields(fleet.routing)}
    return (
        *_stated_settings(policy),
        *_active_settings(rule, pools),
        *_replica_settings(fleet, series, pools),
        *(
            Setting(f"routing.{name}", "", value)
            for name, value in routing.items()
            if isinstance(value, bool | int | float | str)
        ),
    )


def _stated_settings(policy: Policy) -> Iterator[Setting]:
    """Yield the parameters that the scenario gives a policy, one setting per value."""
    for name, value in policy.arguments.items():
        if isinstance(value, bool | int | float | str):
            yield Setting(name, "", value)
        elif isinstance(value, dict):
            yield from (Setting(f"{name}.{key}", "", entry) for key, entry in value.items())
        # A list of rows: a timetable, or rows of named values.
        elif isinstance(value, list) and all("at" in row for row in value):
            yield from map(_timetable_setting, value)
        elif isinstance(value, list):
            for i, row in enumerate(value):
                for key, entry in row.items():
                    text = " ".join(entry) if isinstance(entry, list) else entry
                    yield Setting(f"{name}.{i}.{key}", "", text)


def _timetable_setting(row: Mapping[str, Any]) -> Setting:
    """Return a row of a timetable: its replicas, and the pools that it is for."""
    names = (row.get("model"), row.get("region"), row.get("gpu"))
    where = ", ".join(name for name in names if name)
    return Setting(f"replicas from {row['at']}", where, row["replicas"])


def _active_settings(rule: ScalingPolicy, pools: Sequence[str]) -> Iterator[Setting]:
    """Yield the parameters that a policy computed itself, for each of ``pools`` (names)."""
    if not isinstance(rule, ReportsParameters):
        return
    for row in rule.computed_parameters():
        for where, value in zip(pools, row.values, strict=True):
            if np.isfinite(value):
                yield Setting(row.what, where, float(value))


def _replica_settings(fleet: Fleet, series: PoolSeries, pools: Sequence[str]) -> Iterator[Setting]:
    """Yield the replicas of each pool: at the start, at the peak, and the limits; ``pools`` names.

    Replicas that start count as well as those that serve.
    """
    counts = series.ready + series.starting  # [pool, interval]
    for p, (pool, where) in enumerate(zip(fleet.pools, pools, strict=True)):
        yield Setting("replicas at the start", where, pool.initial)
        yield Setting("peak replicas", where, round(float(counts[p].max(initial=0.0)), 2))
        yield Setting("replicas at least", where, pool.minimum)
        yield Setting("replicas at most", where, pool.maximum)
