"""A made planning problem of 1,000 models in 200 regions on 10 GPU types."""

import time
from typing import Any

import numpy as np

from bench.plan import REFERENCE, load_instance
from planner.optimizer import solve_window
from planner.optimizer.decomposition import compile_kernels, compiled_repair
from planner.optimizer.problem import PlanningProblem

LIMIT_S = 60.0


def larger(problem: PlanningProblem, models: int, regions: int, seed: int = 0) -> PlanningProblem:
    """Return ``problem`` copied to ``models`` x ``regions`` times its size.

    Each copy of a model is up to a tenth faster or slower, with up to half as much demand more or
    less. Capacity grows with the models.
    """
    rng = np.random.default_rng(seed)
    many = (models, regions, 1)
    theta = np.tile(problem.theta_tps, (models, 1))
    demand = np.tile(problem.demand_tps, many)
    current, minimum, maximum, usd, start = (
        np.tile(getattr(problem, name), many)
        for name in ("current", "minimum", "maximum", "usd_per_hour", "start_usd")
    )
    return PlanningProblem(
        models=tuple(f"model {i}" for i in range(len(theta))),
        regions=tuple(f"region {i}" for i in range(demand.shape[1])),
        gpus=problem.gpus,
        current=current,
        theta_tps=theta * rng.uniform(0.9, 1.1, (len(theta), 1)),
        usd_per_hour=usd,
        start_usd=start,
        gpus_per_instance=np.tile(problem.gpus_per_instance, (models, 1)),
        demand_tps=demand * rng.uniform(0.5, 1.5, demand.shape[:2])[..., None],
        capacity_gpus=np.tile(problem.capacity_gpus, (regions, 1)) * models,
        minimum=minimum,
        maximum=maximum,
        epsilon=problem.epsilon,
    )


def figures() -> dict[str, Any]:
    """Return the proven gap after a minute."""
    problem = larger(load_instance(REFERENCE / "200x100x10_0.npz"), 5, 2)
    compile_kernels()
    compiled_repair()
    cpu = time.process_time()
    plan = solve_window(problem, time_limit_s=LIMIT_S)
    return {
        "gap_1000x200x10": plan.gap,
        "status_1000x200x10": plan.status,
        "solve_seconds_1000x200x10": plan.solve_seconds,
        "cpu_seconds_1000x200x10": time.process_time() - cpu,
        "build_seconds_1000x200x10": plan.build_seconds,
    }
