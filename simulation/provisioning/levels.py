"""One service provisioned by whole replicas, by runs of layers and by operators, on the same
devices (A8).

What is compared is devices after placement. Operators and layers can always stand as whole replicas
do, and operators as runs of layers, so a finer level never needs more than a coarser one that it is
given: it takes that one's plan where nothing smaller is found, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.provisioning.blocks import in_blocks
from simulation.provisioning.bounds import at_least, fewest_conceivable, filled, plan_fills
from simulation.provisioning.brute import brute
from simulation.provisioning.energy import fleet_watts
from simulation.provisioning.exact import exact
from simulation.provisioning.frontier import frontiers, priced
from simulation.provisioning.greedy import improved
from simulation.provisioning.placement import Placement, algorithm2
from simulation.provisioning.problem import OperatorPlan, sojourns
from simulation.provisioning.replicas import ReplicaPlan, watts_of, whole_replicas
from simulation.provisioning.workload import PhaseProblem, some_choices

LevelName = Literal["operator", "module", "model"]
LEVELS: tuple[LevelName, ...] = get_args(LevelName)
Method = Literal["greedy", "exact", "brute"]
FALLEN_BACK = {
    "model": "as whole replicas: nothing finer is less",
    "module": "as runs of layers: nothing finer is less",
}
MEMORY_PRICES = (0.0, 0.25, 1.0, 4.0)
"""Weights of memory against load in the price of a choice; the best placed plan is kept."""
EVEN = 0.02  # of power: plans on as many devices that differ by no more are told apart by memory


@dataclass(frozen=True, slots=True)
class Cut:
    """Runs of layers at the batch and parallelism of these indices."""

    b: int
    p: int

    def __call__(self, phase: PhaseProblem) -> PhaseProblem:
        return _uniform(in_blocks(phase), self.b, self.p)


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What one granularity needs. ``gap_slots`` is the distance of the plan's slots to the proven
    optimum (eq. 8); ``least_devices`` what no plan of this granularity can go below, proven."""

    level: str  # of LEVELS
    method: str
    devices: int
    power_w: float
    memory_bytes: float
    latency_s: float
    slo_s: float
    seconds: float  # that planning took
    gap_slots: float | None = None
    least_devices: int | None = None
    plan: OperatorPlan | None = None
    placement: Placement | None = None
    replicas: ReplicaPlan | None = None
    cut: Cut | None = None  # of a level in runs of layers

    def seen(self, phase: PhaseProblem) -> PhaseProblem:
        """``phase`` as the plan sees it: in runs of layers where it is one of those."""
        return phase if self.cut is None else self.cut(phase)


def model_level(phase: PhaseProblem, device_bytes: float) -> Level | None:
    """Whole replicas, each on devices of its own; None when no number of them meets the limit.

    All batches, parallelisms and counts are looked at, so no other uniform plan needs fewer.
    """
    begun = time.perf_counter()
    plan = whole_replicas(phase, device_bytes)
    if plan is None:
        return None
    return Level(
        level="model",
        method="whole replicas",
        devices=plan.devices,
        power_w=watts_of(phase, plan),
        memory_bytes=plan.memory_bytes,
        latency_s=plan.latency_s,
        slo_s=phase.problem.slo_s,
        seconds=time.perf_counter() - begun,
        gap_slots=0.0,
        least_devices=plan.devices,
        replicas=plan,
    )


def operator_level(
    phase: PhaseProblem,
    device_bytes: float,
    *,
    method: str = "greedy",
    shared: bool = True,
    coarser: Sequence[Level] = (),
    proofs: bool = False,
    quick: bool = False,
) -> Level | None:
    """Operators scaled one by one and placed by Algorithm 2; None when no plan meets the limit.

    ``greedy``: our greedy at several prices of memory, the plan of fewest devices after placement.
    ``exact``: the fewest slots, proven, then placed. ``brute``: the same by enumeration, for small
    cases.
    Of ``coarser``, levels of the same phase, one that needs fewer devices is returned instead.
    ``proofs`` adds the gap in slots and the bound on devices; ``quick`` tries fewer prices.
    """
    begun = time.perf_counter()
    problem = phase.problem
    least = fewest_replicas(phase, device_bytes)
    options = frontiers(problem, least)
    if any(not option.slots.size for option in options):
        return None
    table = sojourns(problem) if method != "exact" or proofs else None
    if table is not None:
        table[np.arange(1, problem.max_replicas + 1) < least[..., None]] = np.inf
    plans: list[OperatorPlan | None]
    if method == "greedy":
        assert table is not None
        plans = [improved(problem, options)]
        plans += _by_price(phase, table, device_bytes, quick=quick)
    elif method == "exact":
        plans = [exact(problem, options)]
    else:
        plans = [brute(problem, table)]
    most = None if proofs else _fewest(coarser)
    best = _best_placed(phase, plans, device_bytes, shared=shared, most=most)
    if best is not None:
        by = ", by devices" if method == "greedy" else ""
        best = replace(best, method=f"{best.method}{by}")
    seconds = time.perf_counter() - begun
    if proofs and best is not None and best.plan is not None and table is not None:
        fewest = exact(problem, options)
        best = replace(
            best,
            gap_slots=None if fewest is None else 1.0 - fewest.slots / best.plan.slots,
            least_devices=fewest_conceivable(problem, phase.demand, table, device_bytes),
        )
    least_of_all = best
    best = _least("operator", best, coarser)
    if best is not least_of_all and best is not None and proofs and table is not None:
        # A bound that holds for the coarser plans too: they queue once for many operators.
        bound = fewest_conceivable(problem, phase.demand, table, device_bytes, latency=False)
        best = replace(best, least_devices=bound)
    return None if best is None else replace(best, seconds=seconds)


def module_level(
    phase: PhaseProblem,
    device_bytes: float,
    *,
    method: str = "greedy",
    shared: bool = True,
    coarser: Sequence[Level] = (),
    proofs: bool = False,
) -> Level | None:
    """Runs of layers with replicas of their own, at the best batch and parallelism for all.

    Every batch and parallelism is tried; per one the replicas by our greedy or by the exact plan
    (``brute`` enumerates), placed by Algorithm 2.
    """
    begun = time.perf_counter()
    cut = in_blocks(phase)
    best: Level | None = None
    bounds: list[int] = []
    fills = filled(cut.problem, cut.demand, device_bytes)
    most = None if proofs else _fewest(coarser)
    for at in np.argsort(fills, axis=None, kind="stable"):
        b, p = (int(i) for i in np.unravel_index(at, fills.shape))
        if not np.isfinite(cut.problem.latency_s[:, b, p]).all():
            continue
        if most is not None and at_least(float(fills[b, p])) > most:
            break  # none that follow needs fewer
        alike = _uniform(cut, b, p)
        least = fewest_replicas(alike, device_bytes)
        options = frontiers(alike.problem, least)
        if any(not option.slots.size for option in options):
            continue
        if proofs:
            table = sojourns(alike.problem)
            bounds.append(fewest_conceivable(alike.problem, alike.demand, table, device_bytes))
        if method == "brute":
            plan = brute(alike.problem)
        else:
            plan = (improved if method == "greedy" else exact)(alike.problem, options)
        placed = _best_placed(alike, [plan], device_bytes, shared=shared, most=most)
        if placed is not None and (best is None or _order(placed) < _order(best)):
            best = replace(placed, cut=Cut(b, p))
            most = None if proofs else best.devices
            if proofs and placed.plan is not None:
                fewest = exact(alike.problem, options)
                gap = None if fewest is None else 1.0 - fewest.slots / placed.plan.slots
                best = replace(best, gap_slots=gap)
    if best is not None:
        best = replace(best, level="module", least_devices=min(bounds, default=None))
    own = best
    best = _least("module", best, coarser)
    if best is not own and best is not None:
        best = replace(best, least_devices=min(bounds, default=None))
    return None if best is None else replace(best, seconds=time.perf_counter() - begun)


def _least(level: str, own: Level | None, coarser: Sequence[Level]) -> Level | None:
    """``own``, or the plan of a coarser level where that needs fewer devices or less power."""
    best = min(coarser, key=_order, default=None)
    if best is None or (own is not None and _order(own) <= _order(best)):
        return own
    stands_as = "module" if best.replicas is None else "model"
    return replace(best, level=level, method=FALLEN_BACK[stands_as], gap_slots=None)


def _uniform(phase: PhaseProblem, b: int, p: int) -> PhaseProblem:
    return some_choices(phase, slice(b, b + 1), slice(p, p + 1))


def fewest_replicas(phase: PhaseProblem, device_bytes: float) -> IntArray:
    """Replicas from which on one fits a device, ``[V, B, P]``: the KV cache is divided among them.

    More than ``max_replicas`` where its weights alone are too big.
    """
    demand, most = phase.demand, phase.problem.max_replicas
    room = device_bytes - demand.memory_bytes
    if demand.kept_bytes is None:
        return np.where(room >= 0, 1, most + 1)
    kept = np.broadcast_to(demand.kept_bytes[:, None, :], room.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.ceil(kept / room - 1e-9)
    fits = (room > 0) | ((room == 0) & (kept == 0))
    return np.where(fits, np.clip(np.nan_to_num(needed, nan=1), 1, most + 1), most + 1).astype(
        np.int64
    )


def _best_placed(
    phase: PhaseProblem,
    plans: list[OperatorPlan | None],
    device_bytes: float,
    *,
    shared: bool,
    most: int | None = None,
) -> Level | None:
    """The placed plan of fewest devices; of those the one that holds least memory among the ones
    within ``EVEN`` of the least power. Plans that cannot do with ``most`` are not placed."""
    levels: list[Level] = []
    problem = phase.problem
    able: dict[bytes, tuple[int, OperatorPlan]] = {}
    for plan in plans:
        if plan is None or not plan.feasible or not _fits(phase, plan, device_bytes):
            continue
        key = np.stack([plan.replicas, plan.batch, plan.parallel]).tobytes()
        if key not in able:
            fills = plan_fills(problem, phase.demand, plan, device_bytes)
            able[key] = at_least(fills), plan
    for least, plan in sorted(able.values(), key=lambda pair: pair[0]):
        if most is not None and least > most:
            break
        placed = algorithm2(problem, phase.demand, plan, device_bytes, shared=shared)
        most = placed.devices if most is None else min(most, placed.devices)
        levels.append(
            Level(
                level="operator",
                method=plan.method,
                devices=placed.devices,
                power_w=fleet_watts(
                    problem, phase.power, placed.devices, plan.batch, plan.parallel
                ),
                memory_bytes=float(placed.memory_bytes.sum()),
                latency_s=placed.latency_s,
                slo_s=problem.slo_s,
                seconds=0.0,
                plan=plan,
                placement=placed,
            )
        )
    if not levels:
        return None
    fewest = min(level.devices for level in levels)
    levels = [level for level in levels if level.devices == fewest]
    enough = (1.0 + EVEN) * min(level.power_w for level in levels)
    return min(
        (level for level in levels if level.power_w <= enough), key=lambda level: level.memory_bytes
    )


def _fits(phase: PhaseProblem, plan: OperatorPlan, device_bytes: float) -> bool:
    """Whether every replica fits a device: enumeration does not look."""
    chosen = phase.problem.chosen(plan.batch, plan.parallel)
    return bool((phase.demand.shard_bytes(*chosen, plan.replicas) <= device_bytes).all())


def _fewest(levels: Sequence[Level]) -> int | None:
    return min((level.devices for level in levels), default=None)


def _order(level: Level) -> tuple[int, float]:
    return level.devices, level.power_w


def _by_price(
    phase: PhaseProblem, table: FloatArray, device_bytes: float, *, quick: bool
) -> list[OperatorPlan | None]:
    """Plans by the share of a GPU that choices keep busy and of its memory, at several weights of
    the two, with every parallelism and with one for all operators (mixed ones pack badly)."""
    problem = phase.problem
    plans = []
    for weight in MEMORY_PRICES[:: 2 if quick else 1]:
        price = _shares(phase, device_bytes, weight)
        for j in (None, *range(problem.parallel.size)):
            some = slice(None) if j is None else slice(j, j + 1)
            options = tuple(
                priced(table[v, :, some], price[v, :, some], 0 if j is None else j)
                for v in range(len(problem.names))
            )
            plans.append(improved(problem, options))
    return plans


def _shares(phase: PhaseProblem, device_bytes: float, memory_price: float) -> FloatArray:
    """GPUs' worth of load, and of memory times its price, of every choice, ``[V, B, P, R]``."""
    problem, demand = phase.problem, phase.demand
    replicas = np.arange(1, problem.max_replicas + 1)
    busy = np.maximum(demand.compute, demand.bandwidth) * problem.latency_s
    load = busy * problem.rate / problem.batches[:, None] * problem.parallel
    memory = demand.memory_bytes * problem.parallel / device_bytes
    return np.asarray(load[..., None] + memory_price * memory[..., None] * replicas)


def at_level(
    level: str,
    phase: PhaseProblem,
    device_bytes: float,
    *,
    method: str = "greedy",
    shared: bool = True,
    coarser: Sequence[Level] = (),
    proofs: bool = False,
) -> Level | None:
    """``phase`` at one of ``LEVELS``, never worse than those of ``coarser`` (found before)."""
    if level == "model":
        return model_level(phase, device_bytes)
    if level not in LEVELS:
        raise SimulationError(f"There is no level {level!r}; use {', '.join(LEVELS)}.")
    finer = operator_level if level == "operator" else module_level
    return finer(phase, device_bytes, method=method, shared=shared, coarser=coarser, proofs=proofs)


@dataclass(frozen=True, slots=True)
class Savings:
    """Shares saved against whole replicas; negative: it costs. None against nothing."""

    gpus: float | None
    energy: float | None
    memory: float | None


def saved(whole: Sequence[float], fine: Sequence[float]) -> Savings:
    """``fine`` against ``whole``, each GPUs, energy and memory in whatever unit."""
    return Savings(*(1.0 - f / w if w else None for w, f in zip(whole, fine, strict=True)))


def savings(model: Level, fine: Level) -> Savings:
    """Devices, power and memory of ``fine`` against ``model``."""
    whole, own = ((level.devices, level.power_w, level.memory_bytes) for level in (model, fine))
    return saved(whole, own)
