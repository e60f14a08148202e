"""Provide the inputs from which the policies of a study are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from threading import RLock

import numpy as np

from forecasting.demand import DemandSeries
from planner.domain.planning.inputs import Load, PlannedWindow
from planner.domain.planning.period_solver import Periods
from planner.domain.planning.planning import forecast_load, plan_load
from planner.domain.planning.power_limits import limited_pools
from planner.domain.planning.program import instance_kw
from planner.domain.progress import Progress, part
from planner.domain.replay.backtest_windows import past_studies
from planner.domain.replay.plan_execution import Solved, as_decided, by_clock
from planner.domain.replay.rated_signals import PressureTests
from planner.domain.replay.static_search import smallest_flat
from planner.domain.study import Study
from planner.domain.traffic.groups import by_model_and_region, interactive
from planner.domain.traffic.window import DAY_S
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.settings import ALL, SpareSettings
from planner.optimizer.problem import ScalingPlan
from planner.policies.context import FollowedPlan, Modules, Plan, PolicyContext
from simulation.arrays import FloatArray, IntArray
from simulation.modules.parts import layer_bytes
from simulation.performance.memory import weight_bytes
from simulation.performance.profile import iteration_s
from simulation.policies.parts.ratio import BEST_RATIO
from simulation.policies.wrappers.capacity_limit import SharedLimit

COMPARED_BATCH_SIZE = 32.0  # batch size at which two GPU types are compared
LINK_BYTES_S = 25e9  # PCIe 4.0 x16 as copies reach it, if the GPU's link is unknown


class Loads:
    """Forecast demands that the plans of one study are made for, and the periods solved for them.

    Each is computed once. Threads that share ``lock`` wait for each other.
    """

    def __init__(self, study: Study, lock: RLock | None = None) -> None:
        self._study = study
        self._known: dict[Plan, Load] = {}
        self._solved: dict[tuple[Plan, SpareSettings], Solved] = {}
        self._lock = lock or RLock()

    def planned_for(self, plan: Plan, progress: Progress) -> Load:
        """Return the forecast demand that a policy's plan is made for, times its load factor."""
        key = replace(plan, load_factor=1.0)
        with self._lock:
            if key not in self._known:
                inputs = self._study.plan_input
                inputs = inputs.at_once() if plan.periods == ALL else inputs
                self._known[key] = forecast_load(inputs, progress, method=plan.method).load
            return self._known[key].scaled(plan.load_factor)

    def solved_periods(self, plan: Plan, spare: SpareSettings) -> Solved:
        """Return the periods solved so far for a plan that keeps ``spare`` replicas."""
        return self._solved.setdefault((plan, spare), {})


@dataclass(frozen=True, slots=True, eq=False)
class SharedInputs:
    """Costly inputs that the policies of a study share; those that are None are computed.

    ``planned`` is the plan on the scenario's own forecast. ``tests`` are the pressure tests of
    replicas. ``static`` returns the static fleet of deployable policies, ``[pools]``. By default,
    that is the smallest that meets every tier on the past windows. ``loads`` are forecast demands.
    """

    planned: PlannedWindow | None = None
    tests: PressureTests | None = None
    static: Callable[[], IntArray] | None = None
    loads: Loads | None = None


NOTHING_SHARED = SharedInputs()


def policy_context_of(
    study: Study, *, seed: int, progress: Progress, shared: SharedInputs = NOTHING_SHARED
) -> PolicyContext:
    """Return the context from which the policies of a study are built."""
    tests = shared.tests or PressureTests(study)
    plan_settings, sizes = study.settings.plan, study.sizes
    mean_lengths = [(float(isl.mean()), float(osl.mean())) for isl, osl in study.traffic.lengths]
    pools = study.hardware.model_region_gpu
    planning = part(progress, 0.0, 0.5)
    loads = shared.loads or Loads(study)
    # Costly inputs are functions, called only by the policies that need them.
    return PolicyContext(
        today=study.counts_by_pool(study.today),
        peak=study.counts_by_pool(study.peak),
        lengths=tuple(mean_lengths[m] for m, _, _ in pools),
        shared_limits=_shared_limits(study),
        model_weights=plan_settings.model_worth[[m for m, _, _ in pools]],
        tier_weights=plan_settings.tier_worth,
        tiers=tuple(tuple(study.hardware.limits_of(m)) for m, _, _ in pools),
        start_s=study.window.start_s,
        period_s=study.window.period_s,
        fleet=study.fleet,
        smallest_oracle=lambda: smallest_flat(study, seed=seed, progress=part(progress, 0.0, 0.9)),
        deployable_static=shared.static or partial(static_before, study, seed),
        followed_plan=partial(_followed_plan, study, shared.planned, loads, planning),
        plan_of_day_before=lambda factor: by_clock(study, *_day_before(study, factor, planning)),
        pressure=tests.at,
        pressure_among_many=partial(tests.at, BEST_RATIO, many=True),
        capacity_tps=np.array([sizes.pool_tps[m, g] for m, _, g in pools]),
        modules=lambda: modules_of_pools(study),
    )


def _followed_plan(
    study: Study, planned: PlannedWindow | None, loads: Loads, progress: Progress, plan: Plan
) -> FollowedPlan:
    """Return the plan that a policy follows; ``plan`` states its method and load factor.

    ``planned`` is the plan on the scenario's own forecast, if known. Its load serves any load
    factor of the default kind of plan. ``loads`` are other forecast demands.
    """
    known_plan = None  # a plan for this load, if it exists already
    if planned is None or replace(plan, load_factor=1.0) != Plan():
        load = loads.planned_for(plan, progress)
    else:
        load = planned.load.scaled(plan.load_factor)
        known_plan = planned.plan if plan.load_factor == 1.0 else None
    inputs = study.plan_input
    inputs = inputs.at_once() if plan.periods == ALL else inputs
    if inputs.settings.objective.periods == ALL:  # else each period is planned at its decision
        return by_clock(study, known_plan or plan_load(inputs, load, progress), load)
    solved = loads.solved_periods(plan, study.settings.plan.spare)
    return as_decided(study, Periods.of(inputs, load), known_plan, solved)


def static_before(study: Study, seed: int) -> IntArray:
    """Return the smallest static fleet that meets every tier on the past windows, ``[pools]``.

    Raise ScenarioError if the traffic has no past window.
    """
    past = past_studies(study)
    if not past:
        raise ScenarioError(
            "policies: 'flat-before' is sized on the days before, and the traffic has none before "
            "the window. Leave it out, or choose a later horizon.start."
        )
    return smallest_flat(*past, seed=seed)


def _shared_limits(study: Study) -> tuple[SharedLimit, ...]:
    """Return the limits that pools share: GPUs of a type in a region, and power."""
    hardware = study.hardware
    pools_of: dict[tuple[int, int], list[int]] = {}  # by region and GPU type
    for pool, (_, r, g) in enumerate(hardware.model_region_gpu):
        pools_of.setdefault((r, int(hardware.types[g])), []).append(pool)
    limits = [
        SharedLimit(tuple(pools), int(hardware.capacity_gpus[region_and_type]))
        for region_and_type, pools in pools_of.items()
    ]
    power = limited_pools(hardware, instance_kw(study.plan_input))
    return (*limits, *(SharedLimit(*limit) for limit in power))


def _day_before(study: Study, load_factor: float, progress: Progress) -> tuple[ScalingPlan, Load]:
    """Return the plan that repeats the day before, and the demand that it covers.

    The demand of a period is ``load_factor`` times the demand at the same time of an earlier day,
    the last one that is known at the period's decision. Raise ScenarioError if the traffic has no
    such day.
    """
    window = study.window
    load = np.zeros((len(window.period_starts_s), *study.today.shape[:2], window.bins_per_period))
    deferrable = {tier.name for tier in study.hardware.tiers if tier.deferrable}
    buffer = study.settings.plan.forecast.niw_buffer
    # Without a buffer, all deferrable demand counts, spread evenly over each period.
    deferrable_weight = 1.0 if buffer is None else buffer
    for tiers, weight in ((interactive(study.hardware), 1.0), (deferrable, deferrable_weight)):
        spread = tiers is deferrable and buffer is None
        for (m, r), series in by_model_and_region(study.traffic, tiers):
            for p in range(len(load)):
                rate = _rate_of_day_before(study, series, p)
                if spread:
                    rate = np.full_like(rate, rate.mean())
                load[p, m, r] += load_factor * weight * rate
    day_load = Load(load)
    return plan_load(replace(study.plan_input, at_load=False), day_load, progress), day_load


def _rate_of_day_before(study: Study, series: DemandSeries, period: int) -> FloatArray:
    """Return the demand at the time of a period on the last day known at its decision, ``[bin]``.

    It is in input tokens/s. A gap has the highest rate of the others.
    """
    window = study.window
    start, known_until = window.period_starts_s[period], window.origins_s[period]
    # The same time of day, as many days before as it takes to be known.
    days = np.ceil((start + window.period_s - known_until) / DAY_S)
    begin = start - DAY_S * days
    if begin < study.traffic.demand.start_s:
        raise ScenarioError(
            "policies: 'periodic' needs the previous day, and the traffic has none "
            "before the window. Give it a timetable, or choose a later horizon.start."
        )
    rate = series.window(begin, begin + window.period_s).rate()
    is_gap = np.isnan(rate)
    highest = 0.0 if is_gap.all() else np.nanmax(rate)
    return np.where(is_gap, highest, rate)


def modules_of_pools(study: Study) -> tuple[Modules | None, ...]:
    """Return, for each pool, the modules of its model; None if the model's shape is not known."""
    return tuple(_modules_of(study, pool) for pool in study.hardware.model_region_gpu)


def _modules_of(study: Study, pool: tuple[int, int, int]) -> Modules | None:
    """Return the modules of one pool, a (model, region, GPU column); None without a shape."""
    m, _, g = pool
    hardware = study.hardware
    model, gpu, profile = hardware.models[m], hardware.gpus[g], hardware.profiles[m, g]
    shape = model.shape
    if shape is None:
        return None
    weights = weight_bytes(shape, hardware.sections[m, g].precision)
    attention_bytes, other_bytes = layer_bytes(shape, weights)
    isl, osl = study.traffic.lengths[m]
    # Tokens in the KV caches of a batch, with answers that are halfway on average.
    context = COMPARED_BATCH_SIZE * (float(isl.mean()) + float(osl.mean()) / 2)
    fits_one_node = profile.tp * 2 <= gpu.gpus_per_node  # two replicas fit into one node
    link = gpu.link_bytes_s if fits_one_node else gpu.network_bytes_s
    return Modules(
        layers=shape.layers,
        layer_bytes=attention_bytes + other_bytes,
        attention_share=attention_bytes / (attention_bytes + other_bytes),
        kv_layer_token_bytes=model.kv_bytes_per_token / shape.layers,
        hidden_bytes=2.0 * shape.hidden,
        link_bytes_s=link or gpu.network_bytes_s or LINK_BYTES_S,
        relative_speeds=_relative_speeds(hardware, pool, context),
    )


def _relative_speeds(hardware: Hardware, place: tuple[int, int, int], context: float) -> FloatArray:
    """Return how fast one pool's model decodes on the GPUs of each pool, ``[pools]``.

    The speed on the pool's own GPUs is 1. ``place`` is the pool's (model, region, GPU column).
    ``context`` is the number of tokens of ``COMPARED_BATCH_SIZE`` sequences. NaN: the other pool is
    in another region, or the speed is unknown.
    """
    m, r, g = place
    speeds = np.full(len(hardware.model_region_gpu), np.nan)
    for other_pool, (_, other_r, other_g) in enumerate(hardware.model_region_gpu):
        if other_r == r:
            speeds[other_pool] = _relative_speed(hardware, m, (g, other_g), context)
    return speeds


def _relative_speed(hardware: Hardware, m: int, columns: tuple[int, int], context: float) -> float:
    """Return how fast model ``m`` decodes on the second of two GPU columns; on the first: 1."""
    gpu, other = (hardware.gpus[column] for column in columns)
    if other.name == gpu.name:
        return 1.0
    own_profile, profile = (hardware.profiles.get((m, column)) for column in columns)
    if own_profile is not None and profile is not None and own_profile.tp == profile.tp:
        own_s = float(iteration_s(own_profile, COMPARED_BATCH_SIZE, context, 0.0, 0.0))
        return own_s / float(iteration_s(profile, COMPARED_BATCH_SIZE, context, 0.0, 0.0))
    if gpu.bandwidth_bytes_s and other.bandwidth_bytes_s:  # bounds decoding
        return other.bandwidth_bytes_s / gpu.bandwidth_bytes_s
    return np.nan
