"""Enumerate every choice of every operator, the reference of section 4.2.3 for small cases."""

from __future__ import annotations

import numpy as np

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.provisioning.frontier import Frontier, concatenated_choices
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, evaluate, sojourns
from simulation.provisioning.sojourns import enumerate_plans

MOST = 20_000_000


def brute(problem: OperatorProblem, table: FloatArray | None = None) -> OperatorPlan | None:
    """Return the plan with the fewest slots; raises SimulationError above ``MOST`` plans."""
    table = sojourns(problem) if table is None else table
    count = len(problem.names)
    options = []
    for v in range(count):
        b, p, r = np.nonzero(np.isfinite(table[v]))
        choice = np.stack([b, p, r + 1], axis=1)
        options.append(Frontier(problem.parallel[p] * (r + 1), table[v, b, p, r], choice))
    size = float(np.prod([float(option.slots.size) for option in options]))
    if size > MOST:
        raise SimulationError(
            f"Brute force would look at {size:.1g} plans; use the exact method instead."
        )
    picks = np.full(count, -1, np.int64)
    enumerate_plans(concatenated_choices(options), problem.graph, problem.slo_s, picks)
    if (picks < 0).any():
        return None
    choice = np.array([option.choice[i] for option, i in zip(options, picks, strict=True)])
    return evaluate(problem, "brute", choice)
