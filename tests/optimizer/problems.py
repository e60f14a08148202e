"""Small planning problems, and their optimum by counting every fleet there is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from planner.optimizer.problem import PlanningProblem


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


def best_by_counting(problem: PlanningProblem) -> float | None:
    """The least cost over every fleet within the maximums, or None when none is feasible."""
    most = np.where(problem.theta_tps[:, None, :] > 0, problem.maximum, 0)
    fleets = np.array(list(itertools.product(*(range(int(n) + 1) for n in most.ravel()))))
    x = fleets.reshape(-1, *most.shape)
    served = np.einsum("nlrg,lg->nlr", x, problem.theta_tps)
    gpus = np.einsum("nlrg,lg->nrg", x, problem.gpus_per_instance)
    peak = problem.demand_tps.max(axis=2)
    joint = problem.demand_tps.sum(axis=1).max(axis=1)
    feasible = (
        (x >= problem.minimum).all(axis=(1, 2, 3))
        & (gpus <= problem.capacity_gpus).all(axis=(1, 2))
        & (served >= problem.epsilon * peak - 1e-6).all(axis=(1, 2))
        & (served.sum(axis=2) >= joint - 1e-6).all(axis=1)
    )
    if not feasible.any():
        return None
    starts = np.maximum(0, x - problem.current)
    cost = (problem.usd_per_hour * x + problem.start_usd * starts).sum(axis=(1, 2, 3))
    return float(cost[feasible].min())
