"""Provision one service by replicas, by runs of layers or by operators.

These granularities are called levels. They are compared by devices after placement. Operators and
runs of layers can always run as whole replicas, and operators as runs of layers. A finer level
therefore never uses more devices, power, memory or latency than a given coarser one. If nothing is
better, it returns the coarser plan and states so.

A pass is one way of a batch through all operators. The KV cache is that of requests in flight, so
it grows with the length of passes. Plans are made for several pass lengths up to the latency limit.
A slot is a GPU of one replica: an operator has parallelism times replicas of them.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, get_args

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.provisioning.algorithm1 import algorithm1, greedy_plan
from simulation.provisioning.blocks import merge_layers
from simulation.provisioning.bounds import (
    device_lower_bound,
    device_options,
    devices_filled_by,
    filled_devices,
    round_up_devices,
)
from simulation.provisioning.device_search import plan_on_devices
from simulation.provisioning.energy import fleet_watts
from simulation.provisioning.exact import exact_plan
from simulation.provisioning.frontier import frontiers, priced_frontier
from simulation.provisioning.level import (
    LayerRuns,
    Level,
    best_level,
    fewest_devices,
    level_order,
    no_worse,
    with_uniform_choices,
)
from simulation.provisioning.placement import Placement, fits_devices, place_plan, with_memory_of
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, critical_path, sojourns
from simulation.provisioning.replicas import ReplicaPlan, plan_whole_replicas, watts_of
from simulation.provisioning.topology import output_traffic, renumber_by_affinity
from simulation.provisioning.workload import PhaseProblem, reserve_kv_cache, with_slo

LevelName = Literal["operator", "module", "model"]
LEVELS: tuple[LevelName, ...] = get_args(LevelName)
Method = Literal["greedy", "exact", "algorithm1", "algorithm1-printed"]
ALGORITHM1, PRINTED = "algorithm1", "algorithm1-printed"
# Shares of the limit, and prices of a slot in devices, that the exact method tries
EXACT_SLO_SHARES, EXACT_SLOT_PRICES = (1.0, 0.85, 0.7), (0.0, 0.02, 0.1)
EXACT_STARTS = 3  # plans from which the exact method searches fewer devices
NO_DEVICE_LIMIT = 1_000_000
# Weights of memory against load in the price of a choice; the best placed plan is kept.
MEMORY_PRICES = (0.0, 0.25, 1.0, 4.0)
SHORTEST_S = 1e-3  # base of the pass lengths to plan for: this times powers of two
MAX_FAILURES = 2  # shorter passes to try after the last improvement
SPARE_MEMORY = 0.5  # share of the devices' memory; a plan below it is not limited by memory


def model_level(phase: PhaseProblem, device_bytes: float) -> Level | None:
    """Return the plan with the fewest whole replicas; None if no plan meets the limit.

    All batches, parallelisms and counts are tried. Each replica has its own devices.
    """
    started = time.perf_counter()
    plan = plan_whole_replicas(phase, device_bytes)
    if plan is None:
        return None
    return replace(level_of(phase, plan), seconds=time.perf_counter() - started)


def level_of(phase: PhaseProblem, plan: ReplicaPlan) -> Level:
    """Return a plan of whole replicas as a ``Level``, to compare it with finer plans."""
    return Level(
        level="model",
        method="whole replicas",
        devices=plan.devices,
        power_w=watts_of(phase, plan),
        memory_bytes=plan.memory_bytes,
        latency_s=plan.latency_s,
        slo_s=phase.problem.slo_s,
        seconds=0.0,
        least_devices=plan.devices,
        replicas=plan,
    )


def plan_level(
    name: str,
    phase: PhaseProblem,
    device_bytes: float,
    *,
    method: str = "greedy",
    shared: bool = True,
    coarser: Sequence[Level] = (),
    proofs: bool = False,
    quick: bool = False,
    epsilon: float = 0.0,
) -> Level | None:
    """Return the best plan of ``phase`` at the level ``name``; None if none meets the limit.

    All methods choose replicas, batch and parallelism, place them by Algorithm 2, and keep the plan
    with the fewest devices. Runs of layers have one batch and one parallelism for all, and every
    pair of them is tried. ``coarser`` are plans of the same phase at coarser levels. If no finer
    plan is better, one of them is returned. ``shared`` allows several operators on a GPU.
    ``proofs`` adds a lower bound on devices. ``quick`` tries fewer prices. ``epsilon`` is the
    tolerance of Algorithm 1, as a share of the limit. Raises SimulationError for an unknown level.
    """
    if name == "model":
        return model_level(phase, device_bytes)
    if name not in LEVELS:
        raise SimulationError(f"There is no level {name!r}. Use {', '.join(LEVELS)}.")
    started = time.perf_counter()
    search = _LevelSearch(
        name, phase, device_bytes, method=method, shared=shared, coarser=tuple(coarser),
        proofs=proofs, quick=quick, epsilon=epsilon,
    )  # fmt: skip
    search.plan_by_pass_length()
    bound = min_devices(name, phase, device_bytes) if proofs or method == "exact" else None
    if method == "exact" and name == "operator":
        bound = search.plan_on_fewest_devices(bound or 1)
    if method == "exact" and name == "module" and shared:
        search.plan_layers_on_fewest_devices(bound or 1)
    best = best_level(name, search.levels, coarser)
    if best is None:
        return None
    devices_by_means = min(level.mean_devices for level in (*search.levels, *coarser))
    if bound is not None:
        # A coarser plan is also one of this level.
        bounds = [level.least_devices for level in coarser if level.least_devices is not None]
        bound = min(bound, devices_by_means, *bounds)
    return replace(
        best,
        devices_by_means=devices_by_means,
        least_devices=bound,
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _LevelSearch:
    """Collects placed plans of one level in ``levels``; see ``plan_level`` for the options."""

    name: str
    phase: PhaseProblem
    device_bytes: float
    method: str
    shared: bool
    coarser: tuple[Level, ...]
    proofs: bool
    quick: bool
    epsilon: float
    levels: list[Level] = field(default_factory=list)

    def plan_by_pass_length(self) -> None:
        """Add plans for several pass lengths, with the KV cache that these passes need.

        The lengths are the limit, powers of two of a millisecond, and the latencies of coarser
        levels. Shorter passes only help if memory is scarce. The search stops if they no longer
        improve the best plan, or if the best plan has memory to spare.
        """
        problem, limit_s = self.phase.problem, self.phase.problem.slo_s
        # No pass is faster than its slowest operator at that operator's fastest choice.
        fastest_s = float(problem.latency_s.min(axis=(1, 2)).max())
        powers_s = SHORTEST_S * 2.0 ** np.arange(-7, 30)
        shorter_s = powers_s[(powers_s < limit_s) & (powers_s > fastest_s)][::-1]
        best, failures = None, 0  # failures: lengths since the best plan improved
        for pass_s in (limit_s, *shorter_s.tolist()):
            self.plan_for_passes(pass_s)
            previous_best, best = best, fewest_devices(self.levels)
            if best is None:
                continue
            improved = previous_best is None or level_order(best) < level_order(previous_best)
            failures = 0 if improved else failures + 1
            memory_bytes = best.devices * self.device_bytes
            if failures >= MAX_FAILURES or best.memory_bytes < SPARE_MEMORY * memory_bytes:
                break
        # A coarser level must be matched at its own latency, so plan for that length too.
        for pass_s in sorted({level.latency_s for level in self.coarser}, reverse=True):
            matched = any(
                all(no_worse(level, other) for other in self.coarser) for level in self.levels
            )
            if pass_s < limit_s and not matched:
                self.plan_for_passes(pass_s)

    def plan_for_passes(self, pass_s: float) -> None:
        """Add plans whose passes take at most ``pass_s`` seconds.

        Plans that need more devices than coarser levels are left out, and runs of layers that need
        more than the best so far.
        """
        variant = _phase_with_limit(self.phase, pass_s)
        for subproblem, layer_runs, least_devices in _subproblems(
            self.name, variant, self.device_bytes
        ):
            to_beat = self.coarser if layer_runs is None else self.levels or self.coarser
            max_devices = min((level.devices for level in to_beat), default=NO_DEVICE_LIMIT)
            if self.proofs:
                max_devices = NO_DEVICE_LIMIT
            if layer_runs is not None and least_devices > max_devices:
                return  # sorted by ``least_devices``: all later ones need as many or more
            plans = self.plans_before_placement(subproblem, by_price=layer_runs is None)
            placed = self.place(subproblem, plans, max_devices)
            self.levels.extend(
                replace(level, level=self.name, layer_runs=layer_runs) for level in placed
            )

    def plans_before_placement(
        self, phase: PhaseProblem, *, by_price: bool
    ) -> list[OperatorPlan | None]:
        """Return the plans of the method, before placement; None for a search without a plan.

        ``greedy`` minimizes slots (``greedy_plan``), and with ``by_price`` also GPUs and memory at
        several prices (fewer if ``quick``). ``exact`` adds the plan with the proven fewest slots.
        ``algorithm1`` is the source's algorithm as docs/methods.md A4 reads it, or as printed. It
        ends within the share ``epsilon`` of the limit.
        """
        fewest = fewest_replicas(phase, self.device_bytes)
        frontier_of = frontiers(phase.problem, fewest)
        if any(not frontier.slots.size for frontier in frontier_of):
            return []
        if self.method in (ALGORITHM1, PRINTED):
            sojourn_table = _fitting_sojourns(phase, fewest)
            return list(by_algorithm1(phase.problem, self.method, self.epsilon, sojourn_table))
        plans = [greedy_plan(phase.problem, frontier_of)]
        if self.method == "exact":
            plans.append(exact_plan(phase.problem, frontier_of))
        if by_price:
            sojourn_table = _fitting_sojourns(phase, fewest)
            memory_prices = MEMORY_PRICES[::2] if self.quick else MEMORY_PRICES
            plans += _plans_by_price(phase, sojourn_table, self.device_bytes, memory_prices)
        return plans

    def place(
        self, phase: PhaseProblem, plans: Sequence[OperatorPlan | None], max_devices: int
    ) -> list[Level]:
        """Return the levels of ``plans`` after placement, each with its KV cache in flight.

        Plans that need more than ``max_devices`` devices, or more than the best so far, are
        skipped, and None. Placements must keep the limit of ``phase``.
        """
        levels: list[Level] = []
        problem, demand, device_bytes = phase.problem, phase.demand, self.device_bytes
        # Different prices often give the same plan; place it once.
        feasible: dict[bytes, OperatorPlan] = {}
        for plan in plans:
            if plan is not None and plan.feasible:
                feasible.setdefault(plan.key, plan)
        candidates = [
            (round_up_devices(devices_filled_by(problem, demand, plan, device_bytes)), plan)
            for plan in feasible.values()
            if fits_devices(problem, demand, plan, device_bytes)
        ]
        # Lowest bound first, so that placed plans rule out as many others as possible.
        for least_devices, plan in sorted(candidates, key=lambda candidate: candidate[0]):
            if least_devices > max_devices:
                break
            placement = place_plan(problem, demand, plan, device_bytes, shared=self.shared)
            if placement.feasible:
                max_devices = min(max_devices, placement.devices)
                reserved = reserve_kv_cache(phase, placement.latency_s)
                placement = with_memory_of(placement, problem, reserved.demand, plan)
                levels.append(_placed_level(phase, plan, placement, self.phase.problem.slo_s))
        return levels

    def plan_on_fewest_devices(self, bound: int) -> int:
        """Add plans by operators that need fewer devices, and return a lower bound on devices.

        The first plan has the proven fewest devices by the sums of its operators' needs. Algorithm
        2 may need more devices to place it. So plans with fewer slots, and plans for a tighter
        limit, are tried too. ``_plans_on_fewer_devices`` then starts at them. ``bound`` is the
        lower bound known before.
        """
        least_cache = _with_least_cache(self.phase)
        sojourn_table = _fitting_sojourns(
            least_cache, fewest_replicas(least_cache, self.device_bytes)
        )
        fewest_so_far = min((level.devices for level in self.levels), default=NO_DEVICE_LIMIT)
        frontier_of = device_options(
            least_cache.problem, least_cache.demand, sojourn_table, self.device_bytes, fewest_so_far
        )
        phase_at_limit, starts = _phase_with_limit(self.phase, self.phase.problem.slo_s), []
        for slo_share, slot_price in product(EXACT_SLO_SHARES, EXACT_SLOT_PRICES):
            if fewest_so_far <= bound:
                return bound
            plan = exact_plan(
                least_cache.problem, frontier_of, slo_share=slo_share, slot_price=slot_price
            )
            if plan is None:
                continue
            # Only at the whole limit, with free slots, does the cost count devices alone.
            if plan.bound is not None and (slo_share, slot_price) == (1.0, 0.0):
                bound = max(bound, plan.bound)
            starts.append(plan)
            placed = self.place(phase_at_limit, [plan], fewest_so_far - 1)
            self.levels.extend(placed)
            fewest_so_far = min([fewest_so_far, *(level.devices for level in placed)])
        if self.shared and starts and fewest_so_far < NO_DEVICE_LIMIT:
            self.levels.extend(
                _plans_on_fewer_devices(
                    phase_at_limit, starts[:EXACT_STARTS], self.device_bytes, fewest_so_far, bound
                )
            )
        return bound

    def plan_layers_on_fewest_devices(self, bound: int) -> None:
        """Add plans by layers that need fewer devices.

        The search starts at the greedy plan of each batch and parallelism. ``bound`` is a lower
        bound on devices.
        """
        phase_at_limit = _phase_with_limit(self.phase, self.phase.problem.slo_s)
        for subproblem, layer_runs, least_devices in _subproblems(
            "module", phase_at_limit, self.device_bytes
        ):
            fewest = fewest_replicas(subproblem, self.device_bytes)
            start = greedy_plan(subproblem.problem, frontiers(subproblem.problem, fewest))
            if start is None or not self.levels:
                continue
            for level in _plans_on_fewer_devices(
                subproblem,
                [start],
                self.device_bytes,
                min(level.devices for level in self.levels),
                max(least_devices, bound),
            ):
                self.levels.append(replace(level, level="module", layer_runs=layer_runs))


def _plans_on_fewer_devices(
    phase: PhaseProblem,
    starts: Sequence[OperatorPlan],
    device_bytes: float,
    fewest: int,
    bound: int,
) -> Iterator[Level]:
    """Yield plans on fewer than ``fewest`` devices, each on fewer than the one before.

    The search begins at the plans ``starts``. It ends at ``bound`` devices, or if it finds no plan.
    """
    while bound < fewest:
        found = plan_on_devices(phase, starts, fewest - 1, device_bytes)
        if found is None:
            return
        level = _placed_level(phase, *found, phase.problem.slo_s)
        yield level
        fewest = level.devices


def _subproblems(
    name: str, phase: PhaseProblem, device_bytes: float
) -> Iterator[tuple[PhaseProblem, LayerRuns | None, int]]:
    """Yield the problems that together cover all plans of a level, with a lower bound on devices.

    Operators are one problem. Runs of layers are one problem per batch and parallelism, since all
    runs of a plan have the same. Each problem comes with its ``LayerRuns`` (None for operators) and
    its lower bound. The bounds ascend.
    """
    if name == "operator":
        yield phase, None, 1
        return
    merged = merge_layers(phase)
    needs = filled_devices(merged.problem, merged.demand, device_bytes)
    for index in np.argsort(needs, axis=None, kind="stable"):  # fewest devices first
        b, p = (int(i) for i in np.unravel_index(index, needs.shape))
        if np.isfinite(merged.problem.latency_s[:, b, p]).all():  # every run of layers can run
            uniform = with_uniform_choices(merged, b, p)
            yield uniform, LayerRuns(b, p), round_up_devices(float(needs[b, p]))


def _fitting_sojourns(phase: PhaseProblem, fewest: IntArray) -> FloatArray:
    """Return the sojourns of every choice in seconds, ``[V, B, P, R]``; inf if it does not fit.

    ``fewest [V, B, P]`` are the fewest replicas with which a replica fits on a device.
    """
    sojourn_table = sojourns(phase.problem)
    replicas = np.arange(1, phase.problem.max_replicas + 1)
    sojourn_table[replicas < fewest[..., None]] = np.inf
    return sojourn_table


def by_algorithm1(
    problem: OperatorProblem,
    method: str,
    epsilon: float = 0.0,
    sojourn_table: FloatArray | None = None,
) -> Iterator[OperatorPlan]:
    """Yield the feasible plans of Algorithm 1 (methods.md A4), started at each parallelism.

    ``method`` is ALGORITHM1 or PRINTED. ``epsilon`` is a share of the latency limit,
    ``sojourn_table`` has the sojourns of all choices (see ``algorithm1``).
    """
    for parallel_index in range(problem.parallel.size):
        plan = algorithm1(
            problem, printed=method == PRINTED, epsilon_s=epsilon * problem.slo_s,
            parallel_index=parallel_index, sojourn_table=sojourn_table,
        )  # fmt: skip
        if plan is not None and plan.feasible:
            yield plan


def _phase_with_limit(phase: PhaseProblem, limit_s: float) -> PhaseProblem:
    """Return ``phase`` with latency limit ``limit_s``, and KV cache for passes of that length."""
    return with_slo(reserve_kv_cache(phase, limit_s), limit_s)


def _with_least_cache(phase: PhaseProblem) -> PhaseProblem:
    """Return ``phase`` with the KV cache of the fastest passes. No plan needs less."""
    fastest = phase.problem.latency_s.min(axis=(1, 2))
    return reserve_kv_cache(phase, critical_path(phase.problem, fastest).seconds)


def min_devices(name: str, phase: PhaseProblem, device_bytes: float) -> int:
    """Return a lower bound on the devices that any plan of the level ``name`` needs.

    The bound for operators holds for plans that meet the latency limit on average. The bound for
    runs of layers counts their load and memory only. Neither counts interference.
    """
    least_cache = _with_least_cache(phase)
    if name == "operator":
        sojourn_table = _fitting_sojourns(least_cache, fewest_replicas(least_cache, device_bytes))
        return device_lower_bound(
            least_cache.problem, least_cache.demand, sojourn_table, device_bytes
        )
    merged = merge_layers(least_cache)
    devices_filled = filled_devices(merged.problem, merged.demand, device_bytes)
    return round_up_devices(float(devices_filled.min()))


def fewest_replicas(phase: PhaseProblem, device_bytes: float) -> IntArray:
    """Return the fewest replicas with which each replica fits on a device, ``[V, B, P]``.

    The KV cache is divided among replicas. If even ``max_replicas`` do not fit, the result is
    ``max_replicas`` + 1.
    """
    demand, max_replicas = phase.demand, phase.problem.max_replicas
    too_many = max_replicas + 1
    free_bytes = device_bytes - demand.memory_bytes
    kv_bytes = np.broadcast_to(demand.kv_bytes[:, None, :], free_bytes.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        replicas_needed = np.ceil(kv_bytes / free_bytes - 1e-9)
    # Without free memory and without cache, 0 / 0 is NaN, and one replica is enough.
    fewest = np.clip(np.nan_to_num(replicas_needed, nan=1), 1, too_many)
    fits = (free_bytes > 0) | ((free_bytes == 0) & (kv_bytes == 0))
    return np.where(fits, fewest, too_many).astype(np.int64)


def _placed_level(
    phase: PhaseProblem, plan: OperatorPlan, placement: Placement, slo_s: float
) -> Level:
    """Return the level of a placed plan; its devices are numbered by their traffic."""
    problem = phase.problem
    placement = renumber_by_affinity(
        placement, output_traffic(problem, plan), problem.edges, phase.service.gpu.gpus_per_node
    )
    return Level(
        level="operator",
        method=plan.method,
        devices=placement.devices,
        power_w=fleet_watts(problem, phase.power, placement.devices, plan.batch, plan.parallel),
        memory_bytes=float(placement.memory_bytes.sum()),
        latency_s=placement.latency_s,
        slo_s=slo_s,
        seconds=0.0,
        plan=plan,
        placement=placement,
    )


def _plans_by_price(
    phase: PhaseProblem,
    sojourn_table: FloatArray,
    device_bytes: float,
    memory_prices: Sequence[float],
) -> list[OperatorPlan | None]:
    """Return greedy plans that minimize the price of their choices in GPUs (``_gpu_price``).

    For each of ``memory_prices``, there is one with any parallelism per operator, and one for each
    parallelism for all operators, which often packs better. None: no plan meets the limit.
    ``sojourn_table [operator, batch, parallelism, replicas]`` has the sojourns.
    """
    problem = phase.problem
    parallelisms = problem.parallel.size
    # First and end index of the allowed parallelisms: all of them, then each one alone.
    allowed = [(0, parallelisms), *((p, p + 1) for p in range(parallelisms))]
    plans = []
    for memory_price in memory_prices:
        price = _gpu_price(phase, device_bytes, memory_price)
        for first, end in allowed:
            frontier_of = tuple(
                priced_frontier(sojourn_table[v, :, first:end], price[v, :, first:end], first)
                for v in range(len(problem.names))
            )
            plans.append(greedy_plan(problem, frontier_of))
    return plans


def _gpu_price(phase: PhaseProblem, device_bytes: float, memory_price: float) -> FloatArray:
    """Return the price of every choice in GPUs, ``[V, B, P, R]``.

    It is the number of GPUs kept busy, plus ``memory_price`` times the number of GPUs whose memory
    is filled.
    """
    problem, demand = phase.problem, phase.demand
    replicas = np.arange(1, problem.max_replicas + 1)
    # Seconds of a whole batch on the busier of arithmetic and memory bandwidth
    busy_s = np.maximum(demand.compute, demand.bandwidth) * problem.latency_s
    busy_gpus = busy_s * problem.rate / problem.batches[:, None] * problem.parallel
    filled_gpus = demand.memory_bytes * problem.parallel / device_bytes  # by one replica
    # The arrays are [V, B, P]; the last axis [..., None] is for the number of replicas.
    if demand.compute_reserved:  # reserved arithmetic costs the same if it is not used
        least_busy = busy_gpus / problem.max_replicas  # per replica
        reserved_gpus = np.maximum(demand.compute * problem.parallel, least_busy)
        return np.asarray((reserved_gpus + memory_price * filled_gpus)[..., None] * replicas)
    # More replicas share the same work, but each needs its own memory.
    return np.asarray(busy_gpus[..., None] + memory_price * filled_gpus[..., None] * replicas)
