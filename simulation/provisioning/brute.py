"""Every choice of every operator: the oracle of section 4.2.3, for small cases only."""

from __future__ import annotations

import numpy as np

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.provisioning.kernels import enumerate_plans
from simulation.provisioning.problem import (
    OperatorPlan,
    OperatorProblem,
    evaluate,
    order,
    predecessors,
    sojourns,
)

MOST = 20_000_000


def brute(problem: OperatorProblem, table: FloatArray | None = None) -> OperatorPlan | None:
    """The plan of fewest slots by enumeration; raises where that would be more than ``MOST``."""
    table = sojourns(problem) if table is None else table
    count = len(problem.names)
    stable = [np.argwhere(np.isfinite(table[v])) for v in range(count)]
    size = float(np.prod([float(len(choices)) for choices in stable]))
    if size > MOST:
        raise SimulationError(
            f"Brute force would look at {size:.1g} plans; use the exact method instead."
        )
    picks = np.full(count, -1, np.int64)
    enumerate_plans(
        np.r_[0, np.cumsum([len(choices) for choices in stable])].astype(np.int64),
        np.concatenate([problem.parallel[c[:, 1]] * (c[:, 2] + 1) for c in stable]),
        np.concatenate([table[v][tuple(c.T)] for v, c in enumerate(stable)]),
        np.array(order(count, problem.edges), np.int64),
        *predecessors(count, problem.edges),
        problem.slo_s,
        picks,
    )
    if (picks < 0).any():
        return None
    choice = np.array([stable[v][i] for v, i in enumerate(picks)])
    choice[:, 2] += 1
    return evaluate(problem, "brute", choice)
