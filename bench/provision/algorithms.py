"""Gaps of the greedy algorithms and of Algorithm 2 on seeded random cases, and the times."""

import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from bench.provision.exact_placement import exact_placement, fewest_devices
from simulation.provisioning.algorithm1 import algorithm1, greedy_plan
from simulation.provisioning.exact import exact_plan
from simulation.provisioning.frontier import priced_frontier
from simulation.provisioning.interference import Demand
from simulation.provisioning.levels import MEMORY_PRICES
from simulation.provisioning.placement import place_plan
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, sojourns
from tests.simulation.provisioning.cases import random_demand, random_problem

CASES = 500
LARGE = {"operators": 30, "batches": 64, "parallel": 4, "replicas": 64}
DEVICE = 10.0  # units of memory in the small placement cases


def gaps() -> dict[str, float]:
    """Return the slots of each algorithm over the optimum, less 1, and its share of failures.

    The gap is a mean over the feasible ones of the 500 small cases. A failure is a feasible case
    without a plan within the limit.
    """
    above_best: dict[str, list[float]] = {"printed": [], "algorithm1": [], "our": []}
    missed = dict.fromkeys(above_best, 0)
    feasible = 0
    ways: dict[str, Callable[[OperatorProblem], object]] = {
        "printed": lambda p: algorithm1(p, printed=True),
        "algorithm1": algorithm1,
        "our": greedy_plan,
    }
    for seed in range(CASES):
        problem = random_problem(seed, operators=2 + seed % 3, dag=seed % 2 == 1)
        best = exact_plan(problem)
        if best is None:
            continue
        feasible += 1
        for name, way in ways.items():
            plan = way(problem)
            if plan is None or not plan.feasible:  # type: ignore[attr-defined]
                missed[name] += 1
            else:
                above_best[name].append(plan.slots / best.slots - 1.0)  # type: ignore[attr-defined]
    out: dict[str, float] = {"cases": feasible}
    for name, values in above_best.items():
        out[f"{name}_greedy_gap"] = float(np.mean(values))
        out[f"{name}_greedy_infeasible"] = missed[name] / feasible
    return out


def placement_gap() -> dict[str, float]:
    """Return devices of Algorithm 2 over the fewest, less 1: mean and largest.

    Plans are those of the greedy, with up to 9 replicas on single GPUs.
    """
    above_best = []
    for seed in range(200):
        problem = random_problem(
            seed, operators=2 + seed % 2, batches=2, parallel=1, replicas=3, dag=False
        )
        plan = greedy_plan(problem)
        demand = random_demand(problem, seed)
        if plan is None:
            continue
        greedy = place_plan(problem, demand, plan, DEVICE)
        best = exact_placement(problem, demand, plan, DEVICE)
        if best is None or not greedy.feasible or (greedy.memory_bytes > DEVICE).any():
            raise AssertionError(f"Algorithm 2 broke a limit on case {seed}.")
        above_best.append(greedy.devices / best.devices - 1.0)
    return {
        "placement_gap": float(np.mean(above_best)),
        "placement_gap_most": float(np.max(above_best)),
        "placement_cases": len(above_best),
    }


def device_gap() -> dict[str, float]:
    """Return devices of our greedy over the fewest of all plans and placements, less 1.

    It is a mean over small cases: two operators with up to two replicas each.
    """
    above_best = []
    for seed in range(CASES):
        problem = random_problem(seed, operators=2, parallel=1, replicas=2, dag=seed % 2 == 1)
        demand = random_demand(problem, seed)
        best = fewest_devices(problem, demand, DEVICE)
        plans = [greedy_plan(problem), *(_by_price(problem, demand, w) for w in MEMORY_PRICES)]
        placed = [place_plan(problem, demand, plan, DEVICE) for plan in plans if plan is not None]
        if not placed or best is None:
            continue
        above_best.append(min(plan.devices for plan in placed) / best[1].devices - 1.0)
    return {"gap_to_exact": float(np.mean(above_best)), "gap_to_exact_cases": len(above_best)}


def _by_price(problem: OperatorProblem, demand: Demand, weight: float) -> OperatorPlan | None:
    """Return the plan of our greedy by shares of devices, as levels use it."""
    replicas = np.arange(1, problem.max_replicas + 1)
    busy = np.maximum(demand.compute, demand.bandwidth) * problem.latency_s
    load = busy * problem.rate / problem.batches[:, None] * problem.parallel
    held = (demand.memory_bytes * problem.parallel / DEVICE)[..., None] * replicas
    table = sojourns(problem)
    price = load[..., None] + weight * held
    options = tuple(priced_frontier(table[v], price[v]) for v in range(len(problem.names)))
    return greedy_plan(problem, options)


def times(rounds: int = 20) -> dict[str, float]:
    """Return the seconds of an exact solution, and of a new plan by our greedy.

    The case has 30 operators x 64 batch sizes x 4 parallelisms x 64 replicas. Each time is the
    slowest over seeds of the fastest of ``rounds``.
    """
    exact_s, replan_s, left = [], [], 0
    for seed in range(12):
        problem = random_problem(seed, **LARGE, dag=seed % 2 == 1)
        if exact_plan(problem) is None:
            left += 1
            continue
        exact_s.append(min(_seconds(partial(exact_plan, problem)) for _ in range(3)))
        replan_s.append(min(_seconds(partial(greedy_plan, problem)) for _ in range(rounds)))
    print(f"{len(exact_s)} large cases timed, {left} have no plan", file=sys.stderr)
    return {"exact_seconds": max(exact_s), "replan_ms": 1e3 * max(replan_s)}


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
