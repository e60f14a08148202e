"""Seeded random operator problems, and one worked out by hand."""

import numpy as np

from simulation.provisioning.interference import Demand
from simulation.provisioning.problem import OperatorProblem


def random_problem(
    seed: int, *, operators: int, batches: int = 2, parallel: int = 2, replicas: int = 4, dag: bool
) -> OperatorProblem:
    """Latencies that grow with the batch and shrink with parallelism, less than in proportion."""
    rng = np.random.default_rng(seed)
    sizes = np.arange(1, batches + 1) if batches > 16 else 2 ** np.arange(batches)
    spread = 2 ** np.arange(parallel)
    base = rng.lognormal(-5, 1, operators)[:, None, None]
    growth = rng.uniform(0.3, 1.0, operators)[:, None, None]
    speedup = rng.uniform(0.3, 1.0, operators)[:, None, None]
    latency = base * (0.5 + sizes[None, :, None] ** growth) / spread[None, None, :] ** speedup
    pairs = [(u, v) for u in range(operators) for v in range(u + 1, operators)]
    edges = tuple((u, v) for u, v in pairs if (rng.random() < 0.5 if dag else v == u + 1))
    return OperatorProblem(
        names=tuple(f"operator {v}" for v in range(operators)),
        edges=edges,
        batches=sizes,
        parallel=spread,
        latency_s=latency,
        transfer_s=0.02 * latency,
        rate=float(rng.uniform(0.2, 3.0) / base.max()),
        slo_s=float(latency[:, 0, 0].sum() * rng.uniform(0.5, 4.0)),
        max_replicas=replicas,
    )


def random_demand(problem: OperatorProblem, seed: int = 0) -> Demand:
    """Replicas of 1 to 6 units of memory, bound by arithmetic or by bandwidth."""
    rng = np.random.default_rng(seed)
    shape = problem.latency_s.shape
    bound = rng.uniform(0.3, 1.0, shape)
    compute = np.where(rng.random((shape[0], 1, 1)) < 0.5, bound, bound * rng.uniform(0, 1, shape))
    return Demand(
        memory_bytes=np.broadcast_to(rng.uniform(1.0, 6.0, (shape[0], 1, 1)), shape),
        compute=compute,
        bandwidth=np.where(compute == bound, bound * rng.uniform(0, 1, shape), bound),
    )


def by_hand() -> OperatorProblem:
    """Two operators in a row, 0.1 s and 0.2 s, no batching, no transfer, 4 requests/s.

    Loads 0.4 and 0.8. M/M/1: sojourn = T / (1 - load): 1/6 s and 1 s. M/M/2: T / (1 - (load/2)^2):
    0.1 / 0.96 = 0.104167 s and 0.2 / 0.84 = 0.238095 s.
    """
    latency = np.array([0.1, 0.2])[:, None, None]
    return OperatorProblem(
        names=("attention", "mlp"),
        edges=((0, 1),),
        batches=np.array([1]),
        parallel=np.array([1]),
        latency_s=latency,
        transfer_s=np.zeros_like(latency),
        rate=4.0,
        slo_s=0.5,
        max_replicas=3,
    )
