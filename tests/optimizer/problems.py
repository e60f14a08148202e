"""Small planning problems, and their optimum by counting every fleet there is."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from planner.optimizer.horizon import HorizonPlan, solve_horizon
from planner.optimizer.limited_capacity import unserved_demand
from planner.optimizer.problem import PlanningProblem, Weights, single_period


def problem(**changes: Any) -> PlanningProblem:
    """Two models, two regions, two GPU types with round figures; feasible with room to spare."""
    base = PlanningProblem(
        models=("small", "large"),
        regions=("us-east", "eu-west"),
        gpus=("A100", "H100"),
        current=np.zeros((2, 2, 2), dtype=np.int64),
        theta_tps=np.array([[1000.0, 2500.0], [500.0, 1500.0]]),
        usd_per_hour=np.broadcast_to([[[4.0, 8.0]], [[16.0, 32.0]]], (2, 2, 2)).astype(float),
        start_usd=np.broadcast_to([[[1.0, 2.0]], [[4.0, 8.0]]], (2, 2, 2)).astype(float),
        gpus_per_instance=np.array([[1, 1], [4, 4]], dtype=np.int64),
        demand_tps=np.array([[[3000.0, 2000.0], [1000.0, 2500.0]], [[900.0, 700.0], [100.0, 0.0]]]),
        capacity_gpus=np.array([[16, 16], [16, 16]], dtype=np.int64),
        minimum=np.zeros((2, 2, 2), dtype=np.int64),
        maximum=np.full((2, 2, 2), 99, dtype=np.int64),
        epsilon=0.8,
    )
    return replace(base, **changes)


def bare_problem(models: Any, regions: Any, gpus: Any, **given: Any) -> PlanningProblem:
    """Nothing runs, starts are free, an instance has one GPU, and there may be 99 of a cell."""
    shape = len(models), len(regions), len(gpus)
    defaults = {
        "current": np.zeros(shape, np.int64),
        "start_usd": np.zeros(shape),
        "gpus_per_instance": np.ones(shape[::2], np.int64),
        "minimum": np.zeros(shape, np.int64),
        "maximum": np.full(shape, 99),
        "epsilon": 1.0,
    }
    return PlanningProblem(tuple(models), tuple(regions), tuple(gpus), **(defaults | given))


def random_problem(seed: int) -> PlanningProblem:
    """A tiny instance in which every constraint family can bind, or make it infeasible."""
    rng = np.random.default_rng(seed)
    models, regions, gpus = 2, 2, int(rng.integers(1, 3))
    shape = (models, regions, gpus)
    theta = rng.uniform(50, 150, (models, gpus)).round(1)
    theta[rng.random((models, gpus)) < 0.15] = 0.0
    can_run = np.broadcast_to(theta[:, None, :] > 0, shape)
    maximum = rng.integers(1, 4, shape)
    usd = rng.uniform(1, 10, gpus).round(2) * np.ones(shape)
    return PlanningProblem(
        models=tuple("ab"),
        regions=tuple("xy"),
        gpus=tuple("gh"[:gpus]),
        current=rng.integers(0, 3, shape),
        theta_tps=theta,
        usd_per_hour=usd,
        start_usd=usd * rng.choice([0.0, 0.17, 1.0], shape),
        gpus_per_instance=rng.integers(1, 3, (models, gpus)),
        demand_tps=rng.uniform(0, 45 * gpus, (models, regions, 3)).round(1) * rng.choice([1, 2]),
        capacity_gpus=rng.integers(2, 6, (regions, gpus)),
        minimum=np.minimum(rng.integers(0, 2, shape) * rng.integers(0, 2, shape), can_run),
        maximum=maximum,
        epsilon=float(rng.choice([0.3, 0.8, 1.0])),
    )


def random_columns(seed: int) -> PlanningProblem:
    """A tiny instance whose columns share GPU types, do one stage only or are spot."""
    rng = np.random.default_rng(5000 + seed)
    models, regions = ((1, 2), (2, 1))[seed % 2]
    gpus = int(rng.integers(3, 5))
    shape = (models, regions, gpus)
    theta = rng.uniform(50, 150, (models, gpus)).round(1)
    theta[rng.random((models, gpus)) < 0.1] = 0.0
    types = rng.integers(0, 2, gpus)
    usd = rng.uniform(1, 10, gpus).round(2) * np.ones(shape)
    return PlanningProblem(
        models=tuple("ab"[:models]),
        regions=tuple("xy"[:regions]),
        gpus=tuple("ghij"[:gpus]),
        current=rng.integers(0, 3, shape),
        theta_tps=theta,
        usd_per_hour=usd,
        start_usd=usd * rng.choice([0.0, 0.17, 1.0], shape),
        gpus_per_instance=rng.integers(1, 3, (models, gpus)),
        demand_tps=rng.uniform(20, 150, (models, regions, 3)).round(1),
        capacity_gpus=rng.integers(3, 8, (regions, 2)),
        minimum=np.zeros(shape, np.int64),
        maximum=rng.integers(1, 8 - gpus, shape),
        epsilon=float(rng.choice([0.3, 0.8, 1.0])),
        types=types,
        stages=rng.integers(0, 3, gpus) if rng.random() < 0.7 else None,
        spot=rng.random(gpus) < 0.4 if rng.random() < 0.7 else None,
        spot_share=float(rng.choice([0.0, 0.3, 0.5, 1.0])),
    )


def with_limits(problem: PlanningProblem, seed: int) -> PlanningProblem:
    """``problem`` with energy and carbon, random weights, and one or more caps near its optimum."""
    rng = np.random.default_rng(1000 + seed)
    shape = problem.current.shape
    usd, gpu_hours, kwh, kg = rng.choice([0.0, 1.0, 3.0], 4)
    which = rng.random(3) < 0.5
    least = best_by_counting(problem) or 40.0
    return replace(
        problem,
        weights=Weights(usd=max(0.1, usd), gpu_hours=gpu_hours, kwh=kwh, kg=kg),
        kw=rng.uniform(0.2, 2.0, shape),
        kg_per_kwh=rng.uniform(0.0, 0.8, shape[1]),
        budget_usd=float(rng.uniform(0.95, 1.2) * least) if which[0] else np.inf,
        carbon_kg=float(rng.uniform(0.5, 6)) if which[1] else np.inf,
        churn=float(rng.integers(0, 10)) if which[2] else np.inf,
    )


def with_power(problem: PlanningProblem, seed: int) -> PlanningProblem:
    """``problem`` with kilowatts, and limits on some racks and sites that may be too small."""
    rng = np.random.default_rng(4000 + seed)
    regions, rows = problem.capacity_gpus.shape
    limits = rng.uniform(2, 8, (regions, rows + 1))
    limits[rng.random(limits.shape) < 0.4] = np.inf
    return replace(problem, kw=rng.uniform(0.2, 2.0, problem.current.shape), power_kw=limits)


def with_pools(problem: PlanningProblem, seed: int) -> PlanningProblem:
    """``problem`` whose instances carry less where they are few: each carries a share of theta that
    rises with how many there are, by steps of any size, up to 1 from N of them on."""
    rng = np.random.default_rng(2000 + seed)
    shape = (*problem.theta_tps.shape, int(rng.integers(1, 6)))
    share = np.sort(rng.choice([0.0, 0.4, 0.5, 0.7, 0.8, 0.9, 1.0], shape), axis=2)
    share[..., -1] = 1.0
    share = np.where(rng.random((*shape[:2], 1)) < 0.2, 1.0, share)  # some are straight
    counts = np.arange(1, shape[2] + 1)
    return replace(problem, pool_tps=share * counts * problem.theta_tps[..., None])


def one_region(seed: int) -> PlanningProblem:
    """``random_problem`` with pools and less demand, so that about half have a plan."""
    instance = random_problem(seed)
    return with_pools(replace(instance, demand_tps=0.8 * instance.demand_tps), seed)


def with_spare(problem: PlanningProblem, seed: int) -> PlanningProblem:
    """``problem`` with instances to spare, by pool or by region, or a region, or both."""
    rng = np.random.default_rng(3000 + seed)
    return replace(
        problem,
        demand_tps=0.3 * problem.demand_tps,
        capacity_gpus=problem.capacity_gpus + 2,
        maximum=np.maximum(2, problem.maximum),
        spare=int(rng.choice([0, 1, 1, 2])),
        by_pool=bool(rng.random() < 0.5),
        lose_region=len(problem.regions) > 1 and bool(rng.random() < 0.4),
    )


def pools_by_hand(problem: PlanningProblem, x: np.ndarray) -> np.ndarray:
    """C of every pool of ``x`` ``[n, l, r, g]``, cell by cell."""
    carried = x * problem.theta_tps[:, None, :]
    if problem.pool_tps is not None:
        most = problem.pool_tps.shape[2]
        for m, r, g in np.ndindex(x.shape[1:]):
            table = [0.0, *problem.pool_tps[m, g]]
            table += [table[-1] + problem.theta_tps[m, g] * more for more in range(1, 40)]
            carried[:, m, r, g] = np.array(table)[x[:, m, r, g]]
            assert x[:, m, r, g].max() <= most + 39
    return carried


def every_fleet(problem: PlanningProblem) -> np.ndarray:
    """Every fleet within the maximums, shape ``[n, l, r, g]``."""
    most = np.where(problem.theta_tps[:, None, :] > 0, problem.maximum, 0)
    fleets = np.array(list(itertools.product(*(range(int(n) + 1) for n in most.ravel()))))
    return fleets.reshape(-1, *most.shape)


def served_by_every_fleet(problem: PlanningProblem, x: np.ndarray) -> np.ndarray:
    """What a region serves, ``[n, l, r]``: as much as its prefill and its decode both carry, of
    which owned instances of each carry what spot may not."""
    stages = np.zeros(len(problem.gpus), int) if problem.stages is None else problem.stages
    owned = np.ones(len(problem.gpus), bool) if problem.spot is None else ~problem.spot
    least = 0.0 if problem.spot is None else 1 - problem.spot_share
    gone, parts = len(problem.gpus) * [range(problem.spare + 1)], []
    lost = [way for way in itertools.product(*gone) if sum(way) == problem.spare]
    for way in [(problem.spare,) * len(gone)] if problem.by_pool else lost:
        carried = pools_by_hand(problem, np.maximum(0, x - np.array(way)))
        for other in (2, 1):
            able = stages != other
            parts.append((carried * able).sum(axis=3))
            if least > 0:
                parts.append((carried * (able & owned)).sum(axis=3) / least)
    return np.min(parts, axis=0)


def left_without_a_region(problem: PlanningProblem, served: np.ndarray) -> np.ndarray:
    """What ``served`` ``[n, l, r]`` adds up to, the worst region to lose left out, ``[n, l]``."""
    if not problem.lose_region:
        return served.sum(axis=2)
    regions = range(served.shape[2])
    return np.min([np.delete(served, lost, axis=2).sum(axis=2) for lost in regions], axis=0)


@cache
def counted(seed: int) -> float | None:
    """Of ``random_problem``, for all files that ask."""
    return best_by_counting(random_problem(seed))


class Counted(dict[Any, float | None]):
    """What counting finds of problems by name, counted when it is first looked at: whoever only
    collects tests does not wait for it."""

    def __init__(self, make: Callable[..., PlanningProblem]) -> None:
        self._make = make

    def __missing__(self, name: Any) -> float | None:
        names = name if isinstance(name, tuple) else (name,)
        self[name] = best_by_counting(self._make(*names))
        return self[name]


def best_by_counting(problem: PlanningProblem) -> float | None:
    """The least cost over every fleet within the maximums, or None when none is feasible."""
    x = every_fleet(problem)
    served = served_by_every_fleet(problem, x)
    gpus = np.einsum("nlrg,lg->nrg", x, problem.gpus_per_instance)
    if problem.types is not None:
        gpus = np.stack(
            [gpus[:, :, problem.types == t].sum(axis=2) for t in range(problem.types.max() + 1)], 2
        )
        spare = problem.capacity_gpus[:, : gpus.shape[2]]
    else:
        spare = problem.capacity_gpus
    peak = problem.demand_tps.max(axis=2)
    joint = problem.demand_tps.sum(axis=1).max(axis=1)
    feasible = (
        (x >= problem.minimum).all(axis=(1, 2, 3))
        & (gpus <= spare).all(axis=(1, 2))
        & (served >= problem.epsilon * peak - 1e-6).all(axis=(1, 2))
        & (left_without_a_region(problem, served) >= joint - 1e-6).all(axis=1)
    )
    starts, stops = np.maximum(0, x - problem.current), np.maximum(0, problem.current - x)
    hours = x + starts * problem.start_usd / problem.usd_per_hour
    kw = np.zeros(problem.current.shape) if problem.kw is None else problem.kw
    intensity = np.zeros(len(problem.regions)) if problem.kg_per_kwh is None else problem.kg_per_kwh
    kg = (hours * kw * intensity[:, None]).sum(axis=(1, 2, 3))
    usd = (hours * problem.usd_per_hour).sum(axis=(1, 2, 3))
    feasible &= (usd <= problem.budget_usd + 1e-9) & (kg <= problem.carbon_kg + 1e-9)
    feasible &= (starts + stops).sum(axis=(1, 2, 3)) <= problem.churn
    if problem.power_kw is not None:
        types = np.arange(len(problem.gpus)) if problem.types is None else problem.types
        by_column = (x * kw).sum(axis=1)  # [n, r, g]
        for row in range(problem.power_kw.shape[1]):
            on_row = types == row if row < problem.capacity_gpus.shape[1] else types >= 0
            used = by_column[:, :, on_row].sum(axis=2)
            feasible &= (used <= problem.power_kw[:, row] + 1e-9).all(axis=1)
    if not feasible.any():
        return None
    cost = (
        problem.weights.usd * usd
        + problem.weights.gpu_hours
        * (hours * problem.gpus_per_instance[:, None, :]).sum(axis=(1, 2, 3))
        + problem.weights.kwh * (hours * kw).sum(axis=(1, 2, 3))
        + problem.weights.kg * kg
    )
    return float(cost[feasible].min())


def serve_exactly(problem: PlanningProblem, weight: np.ndarray) -> tuple[HorizonPlan, float]:
    """The plan that leaves the least worth unserved, and how much by its target."""
    plan = solve_horizon(replace(single_period(problem), priority=weight[None]), gap=0.0)
    return plan, worth_left(problem, plan.target[0], weight)


def worth_left(problem: PlanningProblem, target: np.ndarray, weight: np.ndarray) -> float:
    """Weight times the tokens/s that are left unserved."""
    local, joint = unserved_demand(problem, target)
    return float(weight @ (local.sum(axis=1) + joint))
