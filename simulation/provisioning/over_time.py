"""Provision a trace window by window; each granularity scales at its own speed.

A plan for a window uses data from before it: the previous window, or a forecast. It takes effect
when its replicas are up. Operators and layers start within the window. Whole replicas take their
start-up time, which is paid GPU time. Capacity that is no longer needed is removed at once.

A plan sized for the previous window misses the limit in about half of the next windows, at any
granularity. Plans therefore get headroom: they are made for a higher rate. Granularities are
compared at the headroom that each needs for the same share of requests (methods.md X4). The share
is measured by replay of sampled windows (``SampledWindows``). Without a replay, it is the share of
requests in windows where the plan keeps the limit on average.

Demand is rounded up to a grid of 5%, so that a week has a few hundred different problems.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.provisioning.energy import fleet_watts
from simulation.provisioning.level import LayerRuns, Level
from simulation.provisioning.levels import model_level, plan_level
from simulation.provisioning.placement import latency_at
from simulation.provisioning.problem import OperatorPlan
from simulation.provisioning.replicas import ReplicaPlan, under_load
from simulation.provisioning.windows import (
    STEP,
    DemandKey,
    SampledWindows,
    Windows,
    demand_of_previous_block,
    rounded_demands,
)
from simulation.provisioning.workload import PhaseLoad, PhaseProblem, at_rate

# Seconds until an operator replica serves: "sub-second" (introduction of the source).
OPERATOR_ACTS_S = 0.5
# Seconds until copies of all 40 layers of a 13B model serve (CoCoServe, section 6.5, table 2).
MODULE_ACTS_S = 0.8938
MAX_HEADROOM = 4.0
SEARCH_ROUNDS = 12  # of the headroom search: to 0.1% of a rate
REPLAYED_SEARCH_ROUNDS = 4  # of the same search by replay: to 2% of a rate


@dataclass(frozen=True, slots=True, eq=False)
class LevelOverTime:
    """Devices, power and attainment of one granularity (level) in each window of a trace."""

    level: str
    devices: IntArray  # [W] paid for, including starting ones
    power_w: FloatArray  # [W]
    memory_bytes: FloatArray  # [W]
    met: BoolArray  # [W] whether the active plan keeps the limit under the actual load
    refused: int  # windows without a feasible plan; the last plan stays active
    requests_s: FloatArray = field(repr=False)  # [W] actual rate
    headroom: float = 0.0
    # [W] active plan, and the phase that it was made for
    plans: list[tuple[Level, PhaseProblem] | None] = field(default_factory=list, repr=False)
    replayed: float | None = None  # share of replayed requests within the limit

    @property
    def attainment(self) -> float:
        """Return the share of requests within the limit.

        Without a replay, all requests of windows whose plan keeps the limit on average count.
        """
        return self.attainment_by_means if self.replayed is None else self.replayed

    @property
    def attainment_by_means(self) -> float:
        """Return the share of requests in windows whose plan keeps the limit on average."""
        return float(self.requests_s[self.met].sum() / self.requests_s.sum())

    def gpu_hours(self, window_s: float) -> float:
        """Return the GPU hours of all windows, which are ``window_s`` seconds long."""
        return float(self.devices.sum() * window_s / 3600)

    def kwh(self, window_s: float) -> float:
        """Return the energy of all windows in kWh."""
        return float(self.power_w.sum() * window_s / 3.6e6)


KnownDemand = Windows | Mapping[str, Windows] | None  # that plans use: for all levels, or by level


class _RequestedPlan(NamedTuple):
    """A plan of one level and the rounded demand that it was made for."""

    demand: DemandKey
    plan: Level


class _PlanCache:
    """Keeps problems and plans by rounded demand, and outcomes of plans under other demands."""

    def __init__(
        self,
        service: PhaseLoad,
        problem_of: Callable[[PhaseLoad], PhaseProblem],
        device_bytes: float,
    ) -> None:
        self.service, self.problem_of, self.device_bytes = service, problem_of, device_bytes
        self.problem_of_length: dict[int, PhaseProblem] = {}
        self.problems: dict[DemandKey, PhaseProblem] = {}
        self.plans: dict[tuple[str, DemandKey], Level | None] = {}
        self.outcomes: dict[tuple[str, DemandKey, DemandKey], tuple[bool, float]] = {}
        self.by_layer_runs: dict[tuple[LayerRuns, DemandKey], PhaseProblem] = {}

    def problem(self, key: DemandKey) -> PhaseProblem:
        """Return the problem of a rounded demand, built at the first call.

        The rate only scales the load and the KV cache. Latencies depend on the length alone, so
        they are computed once per length.
        """
        if key not in self.problems:
            rate_step, length_step = key
            requests_s, isl, osl = STEP**rate_step, STEP**length_step, self.service.osl
            if self.service.phase != "prefill":
                # The key has output tokens/s and the mean context, not requests/s and prompts.
                tokens_s, context = requests_s, isl
                osl = min(osl, context)
                requests_s, isl = tokens_s / osl, context - osl / 2.0
            if length_step not in self.problem_of_length:
                of_length = replace(self.service, isl=isl, osl=osl)
                self.problem_of_length[length_step] = self.problem_of(of_length)
            self.problems[key] = at_rate(self.problem_of_length[length_step], requests_s)
        return self.problems[key]

    def plan(self, level: str, key: DemandKey) -> Level | None:
        """Return the best plan of a level for a rounded demand; None: none meets the limit."""
        if (level, key) not in self.plans:
            phase = self.problem(key)
            best = model_level(phase, self.device_bytes)
            coarser = [] if best is None else [best]
            if level == "operator":
                layers = self.plan("module", key)
                coarser = coarser if layers is None else [*coarser, layers]
                best = plan_level("operator", phase, self.device_bytes, coarser=coarser, quick=True)
            elif level == "module":
                best = plan_level("module", phase, self.device_bytes, coarser=coarser)
            self.plans[level, key] = best
        return self.plans[level, key]

    def outcome(
        self, plan: Level, planned_demand: DemandKey, real_demand: DemandKey
    ) -> tuple[bool, float]:
        """Return whether ``plan`` keeps the limit under ``real_demand``, and its watts then.

        The plan was made for ``planned_demand``.
        """
        key = (plan.level, planned_demand, real_demand)
        if key not in self.outcomes:
            problem = self.problem(real_demand)
            if plan.layer_runs is not None:  # by runs of layers
                if (plan.layer_runs, real_demand) not in self.by_layer_runs:
                    self.by_layer_runs[plan.layer_runs, real_demand] = plan.layer_runs(problem)
                problem = self.by_layer_runs[plan.layer_runs, real_demand]
            self.outcomes[key] = _outcome_under(problem, plan)
        return self.outcomes[key]


@dataclass(frozen=True, slots=True)
class _LevelSimulation:
    """Simulates one level over all windows, with plans made for ``known_demand``.

    A level is the granularity at which capacity is scaled: operators, runs of layers or replicas.
    """

    level: str
    cache: _PlanCache
    windows: Windows
    known_demand: Windows
    startup_s: float
    sampled_windows: SampledWindows | None  # measures the attainment by replay, if given

    def run(self, plan_level: str, headroom: float) -> LevelOverTime:
        """Simulate the level window by window, with plans made at the level ``plan_level``.

        Plans are made for ``known_demand`` times 1 + ``headroom``. Their capacity starts as fast as
        that of ``self.level``, because a finer level can also start the plans of whole replicas.
        Requested capacity costs from the request on. It serves after its start-up, or at once if
        that is less than a window.
        """
        cache, windows = self.cache, self.windows
        phase = cache.service.phase
        real_demands = rounded_demands(windows, phase)
        known_demands = rounded_demands(self.known_demand, phase, headroom)
        delay = windows_to_act(self.level, self.startup_s, windows.seconds)
        count = len(real_demands)
        requested, refused = self._requested_plans(plan_level, known_demands)
        devices = np.zeros(count, np.int64)
        power, memory, met = np.zeros(count), np.zeros(count), np.zeros(count, np.bool_)
        plans: list[tuple[Level, PhaseProblem] | None] = [None] * count
        for window, latest in enumerate(requested):
            if latest is None:
                continue
            # Capacity serves after ``delay`` windows, so the smallest of the recent plans serves.
            recent = filter(None, requested[max(0, window - delay) : window + 1])
            active = min(recent, key=lambda request: request.plan.devices)
            plans[window] = active.plan, cache.problem(active.demand)
            met[window], serving_watts = cache.outcome(
                active.plan, active.demand, real_demands[window]
            )
            devices[window], memory[window] = latest.plan.devices, latest.plan.memory_bytes
            # Starting GPUs, which the requested plan has beyond the active one, draw idle power.
            starting_gpus = latest.plan.devices - active.plan.devices
            power[window] = serving_watts + starting_gpus * cache.service.gpu.idle_w
        attainment = None
        if self.sampled_windows is not None:
            attainment = self.sampled_windows.attainment(plans)
        return LevelOverTime(
            self.level, devices=devices, power_w=power, memory_bytes=memory, met=met,
            refused=refused, requests_s=windows.requests_s, headroom=headroom, plans=plans,
            replayed=attainment,
        )  # fmt: skip

    def _requested_plans(
        self, plan_level: str, known_demands: list[DemandKey]
    ) -> tuple[list[_RequestedPlan | None], int]:
        """Return the plan that each window requests; None: no plan yet.

        Each is made for the known demand of its window. Without a feasible plan, the last one
        stays. The second value is the number of windows without a feasible plan.
        """
        requested: list[_RequestedPlan | None] = []
        latest, refused = None, 0
        for demand in known_demands:
            plan = self.cache.plan(plan_level, demand)
            if plan is None:
                refused += 1
            else:
                latest = _RequestedPlan(demand, plan)
            requested.append(latest)
        return requested, refused


def over_time(
    windows: Windows,
    service: PhaseLoad,
    problem_of: Callable[[PhaseLoad], PhaseProblem],
    device_bytes: float,
    *,
    startup_s: float,
    attainment: float = 0.0,
    headroom: float = 0.0,
    planned_on: KnownDemand = None,
    levels: tuple[str, ...] = ("model", "operator"),
    every: Mapping[str, int] | None = None,
    sampled_windows: SampledWindows | None = None,
) -> dict[str, LevelOverTime]:
    """Return the result of each of ``levels`` over the windows.

    Plans are made for ``1 + headroom`` times the demand that they know. If they miss
    ``attainment``, the smallest larger headroom that meets it is used. A level that misses it at
    ``MAX_HEADROOM`` is returned as it is. ``every`` is the number of windows per plan of a level
    (default 1). ``planned_on`` is the forecast that plans use, for all levels or by level. By
    default, a plan uses the mean of the windows of the previous plan.

    ``sampled_windows`` replay requests to measure the attainment. With them, a finer level uses
    plans of whole replicas at its own speed. Its own plans replace them if they meet the attainment
    with fewer GPUs, or equal GPUs and less power.
    """
    plans = _PlanCache(service, problem_of, device_bytes)
    results: dict[str, LevelOverTime] = {}
    for level in levels:
        if planned_on is None:
            known = demand_of_previous_block(windows, (every or {}).get(level, 1))
        else:
            known = planned_on if isinstance(planned_on, Windows) else planned_on[level]
        simulation = _LevelSimulation(level, plans, windows, known, startup_s, sampled_windows)
        simulate_own_plans = partial(simulation.run, level)
        simulate_replicas = partial(simulation.run, "model")
        search = partial(_with_least_headroom, low=headroom, attainment=attainment)
        if sampled_windows is None:
            results[level] = search(simulate_own_plans, rounds=SEARCH_ROUNDS)
            continue
        # First try whole-replica plans at this level's speed, then its own plans. The search for
        # these ends early where they need more devices than a result that meets the attainment.
        best = search(simulate_replicas, rounds=REPLAYED_SEARCH_ROUNDS)
        if level != "model":
            max_devices = int(best.devices.sum()) if best.attainment >= attainment else None
            own = search(simulate_own_plans, rounds=REPLAYED_SEARCH_ROUNDS, max_devices=max_devices)
            best = own if _is_better(own, best, attainment) else best
        results[level] = best
    return results


def _is_better(ours: LevelOverTime, coarse: LevelOverTime, attainment: float) -> bool:
    """Return whether a level's own plans (``ours``) are better than those of whole replicas.

    If both meet the attainment, fewer GPUs are better, and at equal GPUs less power. If one misses
    it, the higher attainment is better.
    """
    if ours.attainment < attainment or coarse.attainment < attainment:
        return ours.attainment > coarse.attainment
    gpus, coarse_gpus = int(ours.devices.sum()), int(coarse.devices.sum())
    if gpus != coarse_gpus:
        return gpus < coarse_gpus
    return float(ours.power_w.sum()) < float(coarse.power_w.sum())


def _with_least_headroom(
    simulate: Callable[[float], LevelOverTime],
    low: float,
    attainment: float,
    rounds: int,
    max_devices: int | None = None,
) -> LevelOverTime:
    """Return the result with the smallest headroom from ``low`` on that meets ``attainment``.

    ``simulate`` simulates one headroom. The search doubles the headroom until it meets the
    attainment, then halves the interval ``rounds`` times. If none does, the result is that of the
    largest headroom. The search ends early at a result with more than ``max_devices`` GPUs, summed
    over its windows.
    """
    best = simulate(low)
    if best.attainment >= attainment:
        return best
    high = low + 0.25
    best = simulate(high)
    while best.attainment < attainment and high < MAX_HEADROOM:
        if max_devices is not None and int(best.devices.sum()) > max_devices:
            return best
        low, high = high, min(2 * high, MAX_HEADROOM)
        best = simulate(high)
    if best.attainment < attainment:
        return best
    for _ in range(rounds):
        middle = (low + high) / 2
        trial = simulate(middle)
        if trial.attainment >= attainment:
            high, best = middle, trial
        else:
            low = middle
    return best


def action_delay_s(level: str, startup_s: float) -> float:
    """Return the seconds from a request for capacity of a level until it serves."""
    return {"model": startup_s, "module": MODULE_ACTS_S, "operator": OPERATOR_ACTS_S}[level]


def windows_to_act(level: str, startup_s: float, window_s: float) -> int:
    """Return after how many windows requested capacity of a level serves; 0: within one window."""
    windows = int(np.ceil(action_delay_s(level, startup_s) / window_s - 1e-9))
    return windows if windows > 1 else 0


def _outcome_under(phase: PhaseProblem, level: Level) -> tuple[bool, float]:
    """Return whether a plan keeps the limit under the actual load of a window, and its watts.

    ``phase`` has that load, by operators or by runs of layers as the plan ``level`` has. Under
    overload, GPUs draw at most their full power.
    """
    plan: OperatorPlan | ReplicaPlan
    if level.replicas is not None:
        plan, loaded = level.replicas, under_load(phase, level.replicas)
        latency_s = np.inf if loaded is None else loaded.latency_s
    else:
        plan, placement = level.placed
        latency_s = latency_at(phase.problem, phase.demand, plan, placement)
    watts = fleet_watts(phase.problem, phase.power, level.devices, plan.batch, plan.parallel)
    full_power_w = phase.service.gpu.tdp_w
    if full_power_w:
        watts = min(watts, level.devices * full_power_w)
    return latency_s <= phase.problem.slo_s, watts
