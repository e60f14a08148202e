"""Check the sources' algorithms against versions that share no code with the product.

Each function returns the number of seeded cases in which the two disagree.
"""

import math
from collections.abc import Iterator
from itertools import groupby, product

import numpy as np
import scipy

from planner.optimizer import solve_window
from planner.optimizer.problem import OPTIMAL, PlanningProblem
from simulation.modules.scale_up import ModuleProblem, optimum
from simulation.provisioning.algorithm1 import algorithm1
from simulation.provisioning.exact import exact_plan
from simulation.provisioning.problem import OperatorProblem
from tests.simulation.provisioning.cases import random_problem as random_operators

Choice = tuple[int, int, int]  # index of batch, index of parallelism, replicas


def everything() -> dict[str, int]:
    """Return all disagreements by name."""
    return {
        "algorithm1_disagreements": algorithm1_disagreements(300),
        "exact_disagreements": exact_disagreements(80),
        "sageserve_program_disagreements": program_disagreements(40),
        "replication_disagreements": replication_disagreements(60),
    }


def sojourn(problem: OperatorProblem, v: int, choice: Choice) -> float:
    """Return T + W + C of an operator by equations 1 to 3, with factorials; inf if unstable."""
    b, p, replicas = choice
    service = float(problem.latency_s[v, b, p])
    load = problem.rate / int(problem.batches[b]) * service
    if not load < replicas:
        return math.inf
    last = load**replicas / math.factorial(replicas) * replicas / (replicas - load)
    first = sum(load**n / math.factorial(n) for n in range(replicas))
    wait = last / (first + last) * service / (replicas - load)
    return wait + service + float(problem.transfer_s[v, b, p])


def paths(problem: OperatorProblem) -> list[list[int]]:
    """Return every path from an operator without predecessors to one without successors."""
    after: dict[int, list[int]] = {v: [] for v in range(len(problem.names))}
    for u, v in problem.edges:
        after[u].append(v)
    begin = set(after) - {v for _, v in problem.edges}

    def walk(path: list[int]) -> Iterator[list[int]]:
        if not after[path[-1]]:
            yield path
        for v in after[path[-1]]:
            yield from walk([*path, v])

    return [path for v in sorted(begin) for path in walk([v])]


def plan_by_algorithm1(problem: OperatorProblem) -> list[Choice] | None:
    """Run the printed Algorithm 1 with the full T in the sojourn (methods.md A4)."""
    ways, operators = paths(problem), range(len(problem.names))
    batches, spreads = range(problem.batches.size), range(problem.parallel.size)
    most = problem.max_replicas

    def worst(plan: list[Choice]) -> tuple[float, list[int]]:
        takes = [sojourn(problem, v, plan[v]) for v in operators]
        return max((sum(takes[v] for v in way), way) for way in ways)

    plan: list[Choice] = []
    for v in operators:
        starts: list[tuple[float, Choice]] = []
        for b in batches:
            fewest = (
                r for r in range(1, most + 1) if math.isfinite(sojourn(problem, v, (b, 0, r)))
            )
            starts += [(sojourn(problem, v, (b, 0, r)), (b, 0, r)) for r in list(fewest)[:1]]
        if not starts:
            return None
        plan.append(min(starts)[1])
    while True:
        latency, way = worst(plan)
        v = max(way, key=lambda u: sojourn(problem, u, plan[u]))
        b, p, r = plan[v]
        down = latency <= problem.slo_s
        fewer = r - 1 if down else r + 1
        if not 1 <= fewer <= most:
            return plan
        moves: list[tuple[float, float, Choice]] = []
        for choice in product(range(b if down else 0, len(batches)), spreads, [fewer]):
            after, _ = worst([*plan[:v], choice, *plan[v + 1 :]])
            slots = int(problem.parallel[choice[1]]) * fewer
            if down and after <= problem.slo_s and slots < int(problem.parallel[p]) * r:
                moves.append((slots, after, choice))
            elif not down and after < latency:
                moves.append((after, slots, choice))
        if not moves:
            return plan
        plan[v] = min(moves, key=lambda move: move[:2])[2]


def algorithm1_disagreements(cases: int) -> int:
    """Compare the plans of Algorithm 1 on chains and graphs of two to four operators."""
    wrong = 0
    for seed in range(cases):
        problem = random_operators(seed, operators=2 + seed % 3, dag=seed % 2 == 1)
        ours, theirs = algorithm1(problem), plan_by_algorithm1(problem)
        if ours is None or theirs is None:
            wrong += (ours is None) != (theirs is None)
            continue
        b, p, r = np.array(theirs).T
        same = (problem.batches[b], problem.parallel[p], r)
        pairs = zip((ours.batch, ours.parallel, ours.replicas), same, strict=True)
        wrong += not all(np.array_equal(one, other) for one, other in pairs)
    return wrong


def exact_disagreements(cases: int) -> int:
    """Compare the optimum in slots with every choice of two or three operators."""
    wrong = 0
    for seed in range(cases):
        problem = random_operators(seed, operators=2 + seed % 2, dag=seed % 4 > 1)
        ways, choices = paths(problem), []
        for v in range(len(problem.names)):
            all_of = product(
                range(problem.batches.size),
                range(problem.parallel.size),
                range(1, problem.max_replicas + 1),
            )
            choices.append([
                (int(problem.parallel[p]) * r, takes)
                for b, p, r in all_of
                if math.isfinite(takes := sojourn(problem, v, (b, p, r)))
            ])  # fmt: skip
        fewest = min(
            (
                sum(slots for slots, _ in plan)
                for plan in product(*choices)
                if max(sum(plan[v][1] for v in way) for way in ways) <= problem.slo_s
            ),
            default=None,
        )
        ours = exact_plan(problem)
        wrong += (None if ours is None else ours.slots) != fewest
    return wrong


def program_disagreements(cases: int) -> int:
    """Compare plans of four models, three regions and two GPU types with section 5 as printed."""
    wrong = 0
    for seed in range(cases):
        problem = _window(seed)
        ours, theirs = solve_window(problem, gap=0.0), signed_cost(problem)
        if theirs is None or ours.status != OPTIMAL:
            wrong += (theirs is None) == (ours.status == OPTIMAL)
            continue
        present = float((problem.usd_per_hour * problem.current).sum())
        difference = abs(ours.objective_usd - present - theirs)
        wrong += difference > 1e-6 * max(1.0, abs(theirs))
    return wrong


def signed_cost(problem: PlanningProblem) -> float | None:
    """Return the least gamma + mu over the changes delta, as section 5 states it; None: no plan.

    The columns are delta and max(0, delta), each ``[l, r, g]``.
    """
    n, (models, regions, gpus) = problem.current.ravel(), problem.current.shape
    cells = n.size
    theta = np.broadcast_to(problem.theta_tps[:, None, :], problem.current.shape)
    rows, least = [], []

    def cover(kept: np.ndarray, need: float) -> None:
        carries = np.where(kept, theta, 0.0).ravel()
        rows.append(np.concatenate([carries, np.zeros(cells)]))
        least.append(need - carries @ n)

    at = np.indices(problem.current.shape)
    for i in range(models):
        for j in range(regions):
            peak = problem.epsilon * problem.demand_tps[i, j].max()
            cover((at[0] == i) & (at[1] == j), peak)
        cover(at[0] == i, problem.demand_tps[i].sum(axis=0).max())
    for j in range(regions):  # GPUs of a region are ours
        for k in range(gpus):
            used = (at[1] == j) & (at[2] == k)
            size = np.where(used, problem.gpus_per_instance[:, None, :], 0).ravel()
            rows.append(-np.concatenate([size, np.zeros(cells)]))
            least.append(size @ n - problem.capacity_gpus[j, k])
    rows += list(np.hstack([-np.eye(cells), np.eye(cells)]))  # max(0, delta) >= delta
    least += [0.0] * cells
    found = scipy.optimize.milp(
        np.concatenate([problem.usd_per_hour.ravel(), problem.start_usd.ravel()]),
        integrality=np.ones(2 * cells),
        bounds=scipy.optimize.Bounds(np.concatenate([-n, np.zeros(cells)]), np.inf),
        constraints=scipy.optimize.LinearConstraint(np.array(rows), np.array(least), np.inf),
        options={"mip_rel_gap": 0.0},
    )
    return float(found.fun) if found.success else None


def _window(seed: int) -> PlanningProblem:
    rng = np.random.default_rng(seed)
    shape = models, regions, gpus = 4, 3, 2
    usd = rng.uniform(1, 10, gpus) * np.ones(shape)
    return PlanningProblem(
        models=tuple("abcd"),
        regions=tuple("xyz"),
        gpus=tuple("gh"),
        current=rng.integers(0, 6, shape),
        theta_tps=rng.uniform(500, 3000, (models, gpus)),
        usd_per_hour=usd,
        start_usd=usd * rng.choice([0.17, 1.0], shape),
        gpus_per_instance=rng.integers(1, 9, (models, gpus)),
        demand_tps=rng.uniform(0, 9000, (models, regions, 4)),
        capacity_gpus=rng.integers(20, 120, (regions, gpus)),
        minimum=np.zeros(shape, np.int64),
        maximum=np.full(shape, 1000),
        epsilon=float(rng.choice([0.5, 0.8, 1.0])),
    )


def replication_disagreements(cases: int) -> int:
    """Compare the best replication of five layers on two devices with every one that fits."""
    rng, wrong = np.random.default_rng(7), 0
    for _ in range(cases):
        room = (int(rng.integers(0, 6)), int(rng.integers(0, 6)))
        gamma = float(rng.choice([0.0, 0.05, 0.2, 0.8]))
        best = 1.0
        for bits in product((0, 1), repeat=10):
            devices = bits[:5], bits[5:]
            if all(sum(copies) <= most for copies, most in zip(devices, room, strict=True)):
                delta = sum(sum(key for key, _ in groupby(copies)) for copies in devices)
                passes = sum(1 / (1 + one + other) for one, other in zip(*devices, strict=True))
                best = max(best, 5 / (passes + gamma * delta))
        problem = ModuleProblem(
            home=np.zeros(5, np.int64),
            layer_bytes=1.0,
            free_bytes=np.array([0.0, *room]),
            vacancy=np.array([0.0, 1.0, 1.0]),
            speed=np.ones(3),
            gamma=gamma,
        )
        wrong += abs(optimum(problem).speedup - best) > 1e-6 * best
    return wrong
